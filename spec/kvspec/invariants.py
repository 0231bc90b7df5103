"""Invariants of every snapshot, one named predicate per sentence.

`check_snapshot(config, snapshot)` raises `InvariantViolation` for the first that fails. Each
predicate returns None, or the first offence in words. All are O(pool) and written to be read.
Without those about the places of blocks in lists, and their keys, the others would not be
inductive (proofs/code).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from kvspec.blocks import NULL_BLOCK
from kvspec.config import GIVEN_HASHES, ManagerConfig, span_tokens
from kvspec.errors import InvariantViolation
from kvspec.snapshot import Snapshot

S = TypeVar("S")

HASH_SIZE_BYTES: Mapping[str, int] = {
    **{"sha256_cbor": 32, "sha256_cbor_64bit": 8, "xxhash_cbor": 16},
    **GIVEN_HASHES,
}


GROUP_SIZE_BYTES = 4


def group_of_key(key: bytes) -> int:
    """Return the group index at the end of a cache key (KV-HASH-6)."""
    return int.from_bytes(key[-GROUP_SIZE_BYTES:], "big")


@dataclass(frozen=True)
class Invariant(Generic[S]):
    """A sentence about every snapshot, or every call, and the predicate that decides it."""

    name: str
    rule: str
    sentence: str
    first_offence: Callable[[ManagerConfig, S], str | None]


def invariant(
    rule: str, sentence: str
) -> Callable[[Callable[[ManagerConfig, S], str | None]], Invariant[S]]:
    """Make an invariant of the predicate of its name."""
    return lambda predicate: Invariant(predicate.__name__, rule, sentence, predicate)


def check_snapshot(config: ManagerConfig, snapshot: Snapshot) -> None:
    """Raise InvariantViolation for the first invariant that does not hold."""
    for each in INVARIANTS:
        offence = each.first_offence(config, snapshot)
        if offence is not None:
            raise InvariantViolation(each.name, each.rule, offence, snapshot.describe())


@invariant(
    "KV-CFG-2", "Every block id lies in the pool, and every request has one entry per group."
)
def has_the_right_shape(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    num_blocks = config.kv_cache.num_blocks
    if snapshot.num_blocks != num_blocks:
        return f"{snapshot.num_blocks} blocks, configured {num_blocks}"
    for name in ("ref_counts", "block_keys", "covered_tokens"):
        if len(getattr(snapshot, name)) != num_blocks:
            return f"{name} must have one entry per block"
    if len(snapshot.ranks) != (0 if config.eviction_order == "lru" else num_blocks):
        return "ranks must have one entry per block, and none with lru"
    return ids_fit(config, snapshot)


def ids_fit(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    """Check that ids and lists per group fit the configuration's pool."""
    num_blocks, num_groups = config.kv_cache.num_blocks, len(config.kv_cache.groups)
    for name in ("new_block_ids", "step_keys", "pending_copies"):
        if len(getattr(snapshot, name)) not in (0, num_groups):
            return f"{name} must have one entry per group ({num_groups}), or none"
    for where, blocks in _every_list_of_block_ids(snapshot):
        if blocks and not 0 <= min(blocks) <= max(blocks) < num_blocks:
            return f"a block id in {where} is outside 0 … {num_blocks - 1}: {blocks}"
    for name, state in snapshot.requests.items():
        per_group = len(state.block_ids) == len(state.num_cached_blocks) == num_groups
        if not per_group or len(state.mamba) not in (0, num_groups):
            return f"request {name!r} must have one entry per group ({num_groups})"
    return None


def _every_list_of_block_ids(snapshot: Snapshot) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each list of block ids in the snapshot, with its name."""
    yield "free_queue", snapshot.free_queue
    yield "popped_blocks", snapshot.popped_blocks
    yield "reserved_blocks", snapshot.reserved_blocks
    yield "pending_copies", tuple(_ends_of_copies(snapshot))
    yield "written_from", tuple(snapshot.written_from)
    for blocks in snapshot.lookup_order.values():
        yield "lookup_order", blocks
    for group, blocks in enumerate(snapshot.new_block_ids):
        yield f"new_block_ids[{group}]", blocks
    for name, state in snapshot.requests.items():
        for blocks in state.block_ids:
            yield f"the list of request {name!r}", blocks


def _ends_of_copies(snapshot: Snapshot) -> Iterator[int]:
    """Yield the ends of copies not yet taken, each with a reference (KV-INSIDE-4)."""
    return (block for pairs in snapshot.pending_copies for pair in pairs for block in pair)


@invariant("KV-POOL-1", "The null block is never free, never counted and never cached.")
def null_block_is_apart(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    if NULL_BLOCK in snapshot.free_queue:
        return "the null block is in the free queue"
    if snapshot.ref_counts[NULL_BLOCK]:
        return f"the null block has {snapshot.ref_counts[NULL_BLOCK]} references"
    if snapshot.block_keys[NULL_BLOCK]:
        return "the null block is cached"
    return None


@invariant("KV-POOL-15", "No block is in the free queue twice.")
def free_queue_has_no_duplicates(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for block, count in Counter(snapshot.free_queue).items():
        if count > 1:
            return f"block {block} is in the free queue {count} times"
    return None


@invariant("KV-POOL-15", "A block is in the free queue exactly when it has no references.")
def free_means_unreferenced(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    free = set(snapshot.free_queue)
    for block in range(1, snapshot.num_blocks):
        references = snapshot.ref_counts[block]
        if references < 0:
            return f"block {block} has {references} references"
        if references and block in free:
            return f"block {block} is free but has {references} references"
        if not references and block not in free:
            return f"block {block} has no reference but is not free: leaked"
    return None


@invariant(
    "KV-POOL-16",
    "A block's references are its places in lists and copies, and its popped references.",
)
def references_are_accounted_for(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    held = Counter(snapshot.popped_blocks) + Counter(snapshot.reserved_blocks)
    held.update(_ends_of_copies(snapshot))
    for state in snapshot.requests.values():
        for blocks in state.block_ids:
            held.update(blocks)
    for block, references in enumerate(snapshot.ref_counts):
        times = held.get(block, 0)
        if references != times and block != NULL_BLOCK:
            return f"block {block} counts {references} references but is held {times} times"
    return None


@invariant("KV-POOL-13", "A look-up finds exactly the blocks that carry the key.")
def keys_and_lookups_agree(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    by_block = {(key, block) for block, keys in enumerate(snapshot.block_keys) for key in keys}
    by_key = {(key, block) for key, blocks in snapshot.lookup_order.items() for block in blocks}
    for key, block in sorted(by_block - by_key):
        return f"block {block} carries key {key.hex()} but no look-up finds it"
    for key, block in sorted(by_key - by_block):
        return f"a look-up of {key.hex()} finds block {block}, which does not carry it"
    return None


@invariant("KV-POOL-14", "No block carries a key twice, and no look-up finds a block twice.")
def keys_are_listed_once(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for block, keys in enumerate(snapshot.block_keys):
        if len(keys) > 1 and len(set(keys)) != len(keys):
            return f"block {block} carries a key twice"
    for key, blocks in snapshot.lookup_order.items():
        if not blocks or (len(blocks) > 1 and len(set(blocks)) != len(blocks)):
            return f"the look-up order of {key.hex()} is {blocks}"
    return None


@invariant("KV-HASH-6", "A key is a block hash followed by the index of an existing group.")
def keys_are_well_formed(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    size = HASH_SIZE_BYTES[config.hash_function] + GROUP_SIZE_BYTES
    for key in snapshot.lookup_order:
        if len(key) != size:
            return f"key {key.hex()} has {len(key)} bytes, not {size}"
        if group_of_key(key) >= len(config.kv_cache.groups):
            return f"key {key.hex()} names group {group_of_key(key)}"
    return None


@invariant("KV-COORD-1", "With caching off no block is ever cached.")
def nothing_is_cached_with_caching_off(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    if not config.enable_caching and snapshot.lookup_order:
        return f"{len(snapshot.lookup_order)} keys are cached though caching is off"
    return None


@invariant(
    "KV-POOL-17",
    "A block is listed at most once per request, in one group and at one index everywhere.",
)
def a_block_has_one_place(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    place: dict[int, tuple[int, int]] = {}
    for name, state in snapshot.requests.items():
        seen: set[int] = set()
        for group, blocks in enumerate(state.block_ids):
            for index, block in enumerate(blocks):
                if block == NULL_BLOCK:
                    continue
                if block in seen:
                    return f"request {name!r} lists block {block} twice"
                seen.add(block)
                if place.setdefault(block, (group, index)) != (group, index):
                    return (
                        f"block {block} is index {index} of group {group} for request {name!r}"
                        f" but index {place[block][1]} of group {place[block][0]} for another"
                    )
    return None


@invariant("KV-HASH-6", "A listed block is cached only for the group that lists it.")
def cached_blocks_belong_to_their_group(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for name, state in snapshot.requests.items():
        for group, blocks in enumerate(state.block_ids):
            for block in blocks:
                for key in snapshot.block_keys[block]:
                    if group_of_key(key) != group:
                        return (
                            f"block {block}, in group {group} of request {name!r},"
                            f" is cached for group {group_of_key(key)}"
                        )
    return None


@invariant("KV-GRP-1", "The blocks handed to the cache are leading blocks of the list.")
def cached_counts_fit_the_lists(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for name, state in snapshot.requests.items():
        for group, count in enumerate(state.num_cached_blocks):
            if count is not None and not 0 <= count <= len(state.block_ids[group]):
                return (
                    f"group {group} handed {count} blocks of request {name!r} to the cache,"
                    f" which holds {len(state.block_ids[group])}"
                )
    return None


@invariant(
    "KV-GRP-2",
    "Null comes before all blocks, except in mode align and R-SWA; full attention has none.",
)
def nulls_come_first(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    # Only mode align pads with null after a block (KV-MAMBA-9); R-SWA has null only after its
    # prompt (KV-RSWA-1).
    for name, state in snapshot.requests.items():
        for group, blocks in enumerate(state.block_ids):
            num_nulls = blocks.count(NULL_BLOCK)
            if not num_nulls:
                continue
            spec = config.managed_specs[group]
            if spec.rswa_window and blocks[0] != NULL_BLOCK:
                continue
            if spec.is_full_attention or spec.keeps_all_blocks:
                return f"group {group} skips nothing, but has null for request {name!r}: {blocks}"
            if any(blocks[:num_nulls]) and not spec.is_aligned:
                return f"group {group} has null behind a block for request {name!r}: {blocks}"
    return None


@invariant(
    "KV-POOL-17",
    "All keys of a block are of one group, and its primary key ends in the place it is listed.",
)
def keys_of_one_place(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for block, keys in enumerate(snapshot.block_keys):
        if len(keys) < 2:
            continue
        groups = {group_of_key(key) for key in keys}
        if len(groups) > 1:
            return f"block {block} carries keys of the groups {sorted(groups)}"
    for name, state in snapshot.requests.items():
        for group, blocks in enumerate(state.block_ids):
            span = span_tokens(config, group)
            ahead = config.managed_specs[group].has_checkpoints
            for index, block in enumerate(blocks):
                covered = snapshot.covered_tokens[block]
                # A state may be of the next block (KV-INSIDE-5).
                if covered and not index <= (covered - 1) // span <= index + ahead:
                    return (
                        f"block {block} is index {index} of request {name!r} in group {group},"
                        f" but its primary key covers {covered} tokens"
                    )
    return None


@invariant(
    "KV-PART-3", "Each key of a block ends at a hash of its own, none behind the primary one."
)
def keys_are_covered(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    hashed = config.hash_block_size_tokens or 1
    for block, keys in enumerate(snapshot.block_keys):
        covered = snapshot.covered_tokens[block]
        if not keys:
            if covered:
                return f"block {block} carries no key that could cover {covered} tokens"
            continue
        if covered < 1 or covered % hashed:
            return f"the primary key of block {block} covers {covered} tokens: no hash ends there"
        group, num_keys = group_of_key(keys[0]), len(set(keys))
        if num_keys > 1 and group < len(config.kv_cache.groups):
            num_ends = (covered - 1) % span_tokens(config, group) // hashed + 1
            if num_keys > num_ends:
                return (
                    f"block {block} carries {num_keys} keys, but only {num_ends} hashes"
                    f" end in the {covered} tokens of its primary one"
                )
    return None


@invariant("KV-FULL-8", "A block set aside has one reference, is in no list and is never cached.")
def blocks_set_aside_are_alone(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for block in snapshot.reserved_blocks:
        if snapshot.ref_counts[block] != 1:
            return f"block {block} is set aside, but has {snapshot.ref_counts[block]} references"
        if snapshot.block_keys[block]:
            return f"block {block} is set aside, but cached"
    return None


@invariant("KV-ORD-1", "Cached free blocks are in the order of their ranks.")
def ranks_are_in_order(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    for block, rank in enumerate(snapshot.ranks):
        if rank and not snapshot.block_keys[block]:
            return f"block {block} has rank {rank}, but no key"
    cached = [block for block in snapshot.free_queue if snapshot.block_keys[block]]
    for first, second in pairwise(cached if snapshot.ranks else ()):
        if level_of(config, snapshot.ranks[first]) > level_of(config, snapshot.ranks[second]):
            return f"block {first} is before block {second}, but has a higher rank"
    return None


def level_of(config: ManagerConfig, rank: int) -> int:
    """Return what places a block in the queue: its rank, or whether it is pinned (KV-ORD-4)."""
    name, number = config.order
    return int(rank >= number) if name == "pin" else rank


@invariant(
    "KV-ORD-4", "No rank is above the order's number, and at most half of the pool waits pinned."
)
def ranks_are_bounded(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    name, number = config.order
    if number and max(snapshot.ranks) > number:
        return f"a rank is {max(snapshot.ranks)}, above {number}"
    pinned = [
        block for block in snapshot.free_queue if name == "pin" and snapshot.ranks[block] == number
    ]
    if len(pinned) > (snapshot.num_blocks - 1) // 2:
        return f"blocks {pinned} wait pinned, more than half of the pool"
    return None


INVARIANTS: tuple[Invariant[Snapshot], ...] = (
    has_the_right_shape,
    null_block_is_apart,
    free_queue_has_no_duplicates,
    free_means_unreferenced,
    references_are_accounted_for,
    keys_and_lookups_agree,
    keys_are_listed_once,
    keys_are_well_formed,
    nothing_is_cached_with_caching_off,
    a_block_has_one_place,
    cached_blocks_belong_to_their_group,
    cached_counts_fit_the_lists,
    nulls_come_first,
    keys_of_one_place,
    keys_are_covered,
    blocks_set_aside_are_alone,
    ranks_are_in_order,
    ranks_are_bounded,
)
