"""A manager seen from outside: its block lists and its number of free blocks.

For implementations without Feature.SNAPSHOT. The view is a snapshot of what must hold if the lists
are right: references are places in lists, and popped ones. Keys, the order of the free queue and
cached counts are unknown and left empty, so that nothing is concluded from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvcheck.play.state import View
from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.invariants import INVARIANTS
from kvspec.request import Request
from kvspec.snapshot import RequestState, Snapshot

NOT_FROM_OUTSIDE = frozenset({"free_means_unreferenced"})
"""Invariants about what is left empty; `check_conservation` replaces them."""


def look_from_outside(
    manager: KVCacheManager, requests: Mapping[str, Request], popped: Sequence[int]
) -> View:
    """Return the view of a manager with these requests and popped blocks."""
    lists = {name: manager.get_blocks(request).to_lists() for name, request in requests.items()}
    held = {name: groups for name, groups in lists.items() if any(groups)}
    references = Counter(block for groups in held.values() for blocks in groups for block in blocks)
    references.update(popped)
    num_blocks = manager.config.kv_cache.num_blocks
    counts = [0 if block == NULL_BLOCK else references[block] for block in range(num_blocks)]
    snapshot = Snapshot(
        num_blocks=num_blocks,
        free_queue=(),
        ref_counts=tuple(counts),
        block_keys=((),) * num_blocks,
        lookup_order={},
        covered_tokens=(0,) * num_blocks,
        none_hash=manager.none_hash,
        requests={
            name: RequestState(
                tuple(map(tuple, groups)), (None,) * len(groups), (None,) * len(groups)
            )
            for name, groups in held.items()
        },
        popped_blocks=tuple(sorted(block for block in popped if block != NULL_BLOCK)),
    )
    state = {"ref_cnt": counts, "req_blocks": held}
    return View(manager.num_free_blocks, manager.usage, snapshot, state)


def check_from_outside(config: ManagerConfig, view: View, num_free_at_start: int) -> None:
    """Check the invariants that can be seen from outside, and KV-POOL-15 by counting.

    Raises InvariantViolation.
    """
    for invariant in INVARIANTS:
        if invariant.name not in NOT_FROM_OUTSIDE:
            offence = invariant.first_offence(config, view.snapshot)
            if offence is not None:
                raise InvariantViolation(invariant.name, invariant.rule, offence)
    in_use = sum(1 for count in view.snapshot.ref_counts if count)
    if view.num_free_blocks + in_use != num_free_at_start:
        raise InvariantViolation(
            "free_and_used_add_up",
            "KV-POOL-15",
            f"{view.num_free_blocks} blocks are free and {in_use} in use, of {num_free_at_start}",
        )
