"""A manager under random traffic, its keys, and events of a few words."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

from kvcheck.play.scheduler import admitted
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.events import BlockRemoved, BlockStored, Event, EventHash
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


class Traffic:
    """Prompts of a few families in a small pool; now and then everything is reset."""

    def __init__(
        self,
        implementation: Implementation,
        random: Random,
        *,
        num_blocks: int,
        policy: Policy | None = None,
    ) -> None:
        self.implementation, self.random = implementation, random
        groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(SPECS))
        config = ManagerConfig(
            KVCacheConfig(num_blocks, groups),
            400,
            enable_events=True,
            hash_seed="fleet",
            policy=policy or Policy(),
        )
        self.manager: KVCacheManager = implementation.create(config, check_invariants=False)
        self.running: deque[Request] = deque()
        self.count = 0

    def step(self) -> tuple[Event, ...]:
        """Add a request, free some, and return the events."""
        self.act()
        return self.manager.take_events()

    def act(self) -> None:
        """Do the same, but leave the events in the manager."""
        random = self.random
        self.manager.new_step_starts()
        while self.running and random.random() < 0.5:
            self.manager.free(self.running.popleft())
        self._admit()
        if random.random() < 0.02:
            while self.running:
                self.manager.free(self.running.popleft())
            self.manager.reset_prefix_cache()

    def _admit(self) -> None:
        """Admit a prompt that shares a prefix with its family, or is one of its prompts."""
        random, self.count = self.random, self.count + 1
        family, shared = random.randrange(20), 4 * random.randint(1, 15)
        tokens = [*range(family * 100, family * 100 + shared)]
        tokens += [10_000 + self.count * 50 + i for i in range(random.choice([0, 3, 20]))]
        request = self.implementation.make_request(
            self.manager, RequestInput(f"r{self.count}", tokens)
        )
        hit = self.manager.get_computed_blocks(request)
        length = hit.hit_length_tokens
        blocks = self.manager.allocate_slots(
            request,
            len(tokens) - length,
            num_new_computed_tokens=length,
            new_computed_blocks=hit.blocks,
        )
        if blocks is not None:
            admitted(request, len(tokens))
            self.running.append(request)


def cached(snapshot: Snapshot) -> dict[FleetKey, int]:
    """Return the copies of each key in a manager."""
    counts: Counter[FleetKey] = Counter()
    for keys in snapshot.block_keys:
        for key in keys:
            counts["GPU", int.from_bytes(key[-4:], "big"), key[:-4]] += 1
    return dict(counts)
