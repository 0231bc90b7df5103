"""A manager under random traffic, its keys, and events of a few words."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from random import Random
from typing import Any

from kvcheck.play.scheduler import admitted
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.events import BlockRemoved, BlockStored, EventHash
from kvspec.fleet import FleetImplementation, FleetKey, PrefixIndex
from kvspec.interface import Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.request import Request, RequestInput
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec, SlidingWindowSpec

SPECS = (
    FullAttentionSpec(4, 1, 1, "float16"),
    SlidingWindowSpec(4, 1, 1, "float16", sliding_window=10),
)


def index_of(
    implementation: Implementation, *, max_waiting: int = 1024, removed_event_per: str = "copy"
) -> PrefixIndex:
    """Make an empty index."""
    if not isinstance(implementation, FleetImplementation):
        raise TypeError(f"{implementation.capabilities.name} has no index of engines")
    return implementation.make_prefix_index(
        max_waiting=max_waiting, removed_event_per=removed_event_per
    )


def stored(
    *hashes: EventHash, group: int = 0, medium: str = "GPU", is_report: bool = False
) -> BlockStored:
    """Store these keys, of blocks whose tokens do not matter here."""
    members = (medium, None, group, "full_attention", None)
    return BlockStored(tuple(hashes), None, (), 4, None, None, *members, is_report=is_report)


def removed(*hashes: EventHash, group: int = 0, medium: str = "GPU") -> BlockRemoved:
    """Remove one copy of each hash."""
    return BlockRemoved(tuple(hashes), medium, group)


def managed(
    implementation: Implementation, num_blocks: int, policy: Policy | None = None
) -> KVCacheManager:
    """Make a manager of two groups, which tells events."""
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(SPECS))
    cache = KVCacheConfig(num_blocks, groups)
    members: dict[str, Any] = {"enable_events": True, "policy": policy or Policy()}
    config = ManagerConfig(cache, 400, hash_seed="fleet", **members)
    return implementation.create(config, check_invariants=False)


def traffic(
    implementation: Implementation, manager: KVCacheManager, random: Random
) -> Iterator[None]:
    """Serve prompts that share a prefix with their family, step by step; reset now and then."""
    running: deque[Request] = deque()
    for number in itertools.count():
        manager.new_step_starts()
        is_reset = random.random() < 0.02
        while running and (is_reset or random.random() < 0.5):
            manager.free(running.popleft())
        if is_reset:
            manager.reset_prefix_cache()
        family, shared = random.randrange(20), 4 * random.randint(1, 15)
        tokens = [*range(family * 100, family * 100 + shared)]
        tokens += [10_000 + number * 50 + i for i in range(random.choice([0, 3, 20]))]
        request = implementation.make_request(manager, RequestInput(f"r{number}", tokens))
        hit = manager.get_computed_blocks(request)
        length = hit.hit_length_tokens
        options: Any = {"num_new_computed_tokens": length, "new_computed_blocks": hit.blocks}
        if manager.allocate_slots(request, len(tokens) - length, **options) is not None:
            admitted(request, len(tokens))
            running.append(request)
        yield


def cached(snapshot: Snapshot) -> dict[FleetKey, int]:
    """Return the copies of each key in a manager."""
    counts: Counter[FleetKey] = Counter()
    for keys in snapshot.block_keys:
        for key in keys:
            counts["GPU", int.from_bytes(key[-4:], "big"), key[:-4]] += 1
    return dict(counts)
