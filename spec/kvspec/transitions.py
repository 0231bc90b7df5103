"""Invariants of two snapshots around one call.

`check_transition(config, transition)` raises `InvariantViolation` for the first that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.invariants import Invariant, invariant
from kvspec.snapshot import Snapshot

PURE_CALLS = frozenset(
    {
        "get_computed_blocks",
        "find_longest_cache_hit_per_group",
        "get_num_common_prefix_blocks",
        "get_blocks",
        "get_unhashed_block_ids",
        "get_block",
        "get_num_blocks_to_allocate",
        "take_events",
        "make_prefix_cache_stats",
        "record_prefix_cache_stats",
        "take_residency_samples",
        "snapshot",
    }
)
"""Calls that change no part of a snapshot (queues of events and statistics are not part of it)."""


@dataclass(frozen=True)
class Transition:
    """One call: its name, how it ended, and the state around it.

    `outcome` is `done`, `refused` (None or False for lack of space or use) or `error`.
    """

    call: str
    outcome: str
    before: Snapshot
    after: Snapshot


def check_transition(
    config: ManagerConfig, transition: Transition, *, left_out: frozenset[str] = frozenset()
) -> None:
    """Raise InvariantViolation for the first transition invariant that does not hold.

    `left_out` names invariants that the implementation does not promise.
    """
    for each in TRANSITION_INVARIANTS:
        if each.name in left_out:
            continue
        offence = each.first_offence(config, transition)
        if offence is not None:
            before, after = transition.before.describe(), transition.after.describe()
            state = f"-- before --\n{before}\n-- after --\n{after}"
            raise InvariantViolation(each.name, each.rule, f"{transition.call}: {offence}", state)


def _difference(before: Snapshot, after: Snapshot) -> str | None:
    """Describe the first member that differs."""
    for member in Snapshot.__dataclass_fields__:
        old, new = getattr(before, member), getattr(after, member)
        if old != new:
            return f"{member} changed from {old!r} to {new!r}"
    return None


@invariant("KV-ERR-2", "A call that raises leaves the state exactly as it was.")
def errors_change_nothing(config: ManagerConfig, t: Transition) -> str | None:
    return _difference(t.before, t.after) if t.outcome == "error" else None


@invariant("KV-MGR-2", "Look-ups and questions change no state.")
def pure_calls_change_nothing(config: ManagerConfig, t: Transition) -> str | None:
    return _difference(t.before, t.after) if t.call in PURE_CALLS else None


@invariant(
    "KV-MGR-6",
    "A refused allocation at most releases skipped blocks; any other refusal changes nothing.",
)
def a_refusal_only_releases(config: ManagerConfig, t: Transition) -> str | None:
    if t.outcome != "refused":
        return None
    if t.call != "allocate_slots":
        return _difference(t.before, t.after)
    if t.before.block_keys != t.after.block_keys:
        return "a refusal changed what is cached"
    if t.before.requests.keys() != t.after.requests.keys():
        return "a refusal added or forgot a request"
    for block, count in enumerate(t.after.ref_counts):
        if count > t.before.ref_counts[block]:
            return f"a refusal left a new reference to block {block}"
    return None


@invariant("KV-GRP-1", "Block lists are append-only; an entry may only turn null.")
def a_list_only_grows_or_turns_null(config: ManagerConfig, t: Transition) -> str | None:
    return _changed_entry(config, t, aligned=False)


@invariant(
    "KV-MAMBA-9", "In mode align an entry keeps its block, or turns null; what moves is appended."
)
def states_stay_or_move_to_the_end(config: ManagerConfig, t: Transition) -> str | None:
    return _changed_entry(config, t, aligned=True)


def _changed_entry(config: ManagerConfig, t: Transition, *, aligned: bool) -> str | None:
    """Find an entry whose block was replaced, in groups of align-mode Mamba or in all others.

    Mode align moves a block by appending it and leaving null (KV-MAMBA-9).
    """
    for name, old_state in t.before.requests.items():
        new_state = t.after.requests.get(name)
        if new_state is None:
            continue
        for group, old in enumerate(old_state.block_ids):
            spec = config.managed_specs[group]
            if (spec.is_aligned) is not aligned:
                continue
            new = new_state.block_ids[group]
            if len(new) < len(old):
                return f"the list of request {name!r} in group {group} shrank"
            for index, block in enumerate(old):
                if new[index] not in (block, NULL_BLOCK):
                    return (
                        f"index {index} of request {name!r} in group {group}"
                        f" changed from block {block} to {new[index]}"
                    )
    return None


@invariant(
    "KV-POOL-4",
    "Allocation takes no cached identity from a block that stays where it is in a list.",
)
def blocks_that_stay_keep_their_keys(config: ManagerConfig, t: Transition) -> str | None:
    if t.call != "allocate_slots":
        return None
    for name, old_state in t.before.requests.items():
        new_state = t.after.requests.get(name)
        if new_state is None:
            continue
        for old, new in zip(old_state.block_ids, new_state.block_ids, strict=True):
            # Index by index: a block that fell out of the window may return as a new one.
            for block, now in zip(old, new, strict=False):
                # A promotion replaces the keys of a partial entry, so some key is left.
                is_copied = any(block in pair for pairs in t.after.pending_copies for pair in pairs)
                if is_copied:  # its keys moved (KV-INSIDE-16)
                    continue
                if block == now and t.before.block_keys[block] and not t.after.block_keys[block]:
                    return f"block {block} of request {name!r} lost its cached identity"
    return None


@invariant(
    "KV-POOL-13", "Of the blocks with a key, those that were there stay first, in their order."
)
def lookups_keep_their_order(config: ManagerConfig, t: Transition) -> str | None:
    for key, new in t.after.lookup_order.items():
        old = t.before.lookup_order.get(key, ())
        if new == old:
            continue
        # A free block may have been taken and registered again under the same key, and one that was
        # promoted may have got its partial key again (KV-POL-17).
        stayed = tuple(
            block
            for block in old
            if block in new
            and t.before.ref_counts[block]
            and t.before.covered_tokens[block] == t.after.covered_tokens[block]
        )
        if tuple(block for block in new if block in stayed) != stayed or any(
            new.index(block) < new.index(other) for block in set(new) - set(old) for other in stayed
        ):
            return f"the look-up order of {key.hex()} went from {old} to {new}"
    return None


def ranks_in_use(t: Transition) -> Iterator[tuple[int, int]]:
    """Yield the blocks that stay in use with a key, each with the rise of its rank.

    A call may also release a block behind a window, and take and cache it anew.
    """
    copied = {block for pairs in t.after.pending_copies for pair in pairs for block in pair}
    for block, (old, new) in enumerate(zip(t.before.ranks, t.after.ranks, strict=True)):
        is_used = t.before.ref_counts[block] and t.after.ref_counts[block]
        is_cached = set(t.before.block_keys[block]) & set(t.after.block_keys[block])
        if is_used and is_cached and block not in copied:  # keys may move (KV-INSIDE-16)
            yield block, new - old


@invariant("KV-ORD-2", "The rank of a block in use never falls, and rises only at an admission.")
def ranks_in_use_stay_or_rise(config: ManagerConfig, t: Transition) -> str | None:
    for block, rise in ranks_in_use(t):
        if rise < 0 or (rise and t.call != "allocate_slots"):
            return f"the rank of block {block}, which is in use, rose by {rise} in {t.call}"
    return None


@invariant("KV-ORD-3", "Under lfu a block in use rises by one for each hit that is granted.")
def hits_are_counted(config: ManagerConfig, t: Transition) -> str | None:
    if config.eviction_order != "lfu" or t.call != "allocate_slots":
        return None
    for block, rise in ranks_in_use(t):
        hits = max(0, t.after.ref_counts[block] - t.before.ref_counts[block])
        if rise != hits:
            return f"block {block} was hit {hits} times, but its rank rose by {rise}"
    return None


@invariant("KV-ORD-5", "Under ttl a step takes one from the ranks of cached blocks in the queue.")
def a_step_ages_what_waits(config: ManagerConfig, t: Transition) -> str | None:
    if config.order[0] != "ttl" or t.call != "new_step_starts":
        return None
    for block in (each for each in t.before.free_queue if t.before.block_keys[each]):
        old, new = t.before.ranks[block], t.after.ranks[block]
        keys = t.before.block_keys[block] if old else ()
        if new != max(0, old - 1) or t.after.block_keys[block] != keys:
            return f"block {block} of rank {old} got rank {new}, or other keys"
    return None


TRANSITION_INVARIANTS: tuple[Invariant[Transition], ...] = (
    errors_change_nothing,
    pure_calls_change_nothing,
    a_refusal_only_releases,
    a_list_only_grows_or_turns_null,
    states_stay_or_move_to_the_end,
    blocks_that_stay_keep_their_keys,
    lookups_keep_their_order,
    ranks_in_use_stay_or_rise,
    hits_are_counted,
    a_step_ages_what_waits,
)
