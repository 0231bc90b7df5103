"""Check that a call is legal, before its first change (KV-ERR-2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from kvref.coordinator import Coordinator
from kvref.following import FollowedRequest
from kvref.groups.base import Group
from kvref.hashing import Hasher, hash_of_block, make_key
from kvref.request import Allocation, ReferenceRequest
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.domains import HELD_MAX, boolean, count, exact, is_int
from kvspec.errors import BlockReleaseError, InvalidArgumentError, StaleHitError, UnknownBlockError
from kvspec.request import Request, RequestStatus, is_status

T = TypeVar("T")


def made_here(request: Request) -> ReferenceRequest:
    """Return the request if this implementation made it, else raise InvalidArgumentError."""
    made = "made by this implementation's make_request"
    if not isinstance(request, ReferenceRequest):
        raise InvalidArgumentError("request", request, made)
    if not vars(request):  # `__new__` alone
        raise InvalidArgumentError("request", None, made)
    return request


def check_hashes(request: ReferenceRequest, config: ManagerConfig, hasher: Hasher) -> None:
    """Check that the request was hashed as the manager hashes.

    A hash of 8 tokens would claim a block of 4.
    """
    if isinstance(request, FollowedRequest) != (config.given_hash_bytes > 0):  # KV-REQ-6
        made = "make_followed" if config.given_hash_bytes else "make_request"
        raise InvalidArgumentError("request", request.request_id, f"made by {made}")
    if not config.enable_caching:
        return
    theirs, size = request.hasher, request.hash_block_size_tokens
    made_for = (theirs.function, theirs.none_hash, theirs.tags, theirs.lookahead_tokens, size)
    mine = (
        *(hasher.function, hasher.none_hash, hasher.tags, hasher.lookahead_tokens),
        config.hash_block_size_tokens,
    )
    if made_for != mine:
        raise InvalidArgumentError(
            "request",
            request.request_id,
            "made for a manager with the same hash function, seed, block size and extra keys",
        )


def check_counts(**counts: int) -> tuple[int, ...]:
    """Return the values of counts; each must be an int of at least 0."""
    return tuple(count(name, value) for name, value in counts.items())


def check_flags(**flags: bool) -> None:
    """Check that every flag is True or False."""
    for name, value in flags.items():
        boolean(name, value, error=InvalidArgumentError)


def check_junction(request: ReferenceRequest) -> None:
    """Check the scheduler's note of the request's look-up (KV-RET-7)."""
    count("request.junction_tokens", request.junction_tokens)


def check_scheduling(request: ReferenceRequest) -> None:
    """Check the counts and the status that the scheduler sets on a request."""
    count("request.num_preemptions", request.num_preemptions)
    count("request.num_in_flight_tokens", request.num_in_flight_tokens)
    check_junction(request)
    if not is_status(request.status):
        raise InvalidArgumentError(
            "request.status", request.status, "one of " + ", ".join(RequestStatus)
        )


def offered_hits(blocks: KVCacheBlocks | None, num_groups: int, num_blocks: int) -> KVCacheBlocks:
    """Check the hit blocks of a call: a list of block ids per group, empty for None (KV-MGR-8)."""
    if blocks is None:
        return KVCacheBlocks.empty(num_groups)
    if not isinstance(blocks, KVCacheBlocks):
        raise InvalidArgumentError("new_computed_blocks", blocks, "KVCacheBlocks or None")
    groups = list(islice(each("new_computed_blocks", blocks.groups), num_groups + 1))
    if len(groups) != num_groups:
        raise InvalidArgumentError(
            "new_computed_blocks", blocks, f"one list per group ({num_groups})"
        )
    return KVCacheBlocks(
        tuple(
            tuple(block_ids(ids, num_blocks, field=f"new_computed_blocks[{group}]"))
            for group, ids in enumerate(groups)
        )
    )


def check_allocation(asked: Allocation, coordinator: Coordinator, longest: int) -> None:
    """Check the demands of `allocate_slots`, except counts; no sequence is `longest` + 1 long."""
    replays = any(group.spec.replays_window for group in coordinator.groups)
    is_replay = replays and asked.num_hit_tokens > 0  # KV-SW-10
    if asked.num_new_tokens == 0 and not asked.has_load and not is_replay:  # KV-MGR-3
        raise InvalidArgumentError(
            "num_new_tokens", 0, "at least 1 when no external tokens come either"
        )
    check_scheduling(asked.request)
    _check_computed(coordinator.groups, asked.request)
    _check_continues(asked, coordinator)
    computed = asked.num_local_tokens + asked.num_external_tokens
    most = longest - min(computed, longest)
    if asked.num_new_tokens > most:  # KV-MGR-4
        raise InvalidArgumentError(
            "num_new_tokens",
            asked.num_new_tokens,
            f"at most {most}: no token has a slot beyond {longest}",
        )
    if asked.has_load:
        computed = min(computed, asked.request.num_tokens - 1)
    _check_hits(
        coordinator.groups,
        asked.request,
        asked.hits,
        asked.num_hit_tokens,
        has_load=asked.has_load,
        skip_at_tokens=computed,
    )


def _check_computed(groups: Sequence[Group], request: ReferenceRequest) -> None:
    """Check that computed tokens have slots, and the next one can read (KV-REQ-3, KV-REQ-9)."""
    computed = count("request.num_computed_tokens", request.num_computed_tokens)
    for slots in slots_of(groups, request):
        if computed > slots:
            raise InvalidArgumentError(
                "request.num_computed_tokens", computed, f"at most the {slots} slots it holds"
            )
    for group in groups:
        if group.covers_sequence and not group.is_mamba:
            read = group.blocks_of(request.request_id)[group.first_read_index(request) :]
            if read and read[0] == NULL_BLOCK:
                raise InvalidArgumentError(
                    "request.num_computed_tokens", computed, "a number whose window is still there"
                )


def slots_of(groups: Sequence[Group], request: ReferenceRequest) -> list[int]:
    """Return the tokens that the request's blocks cover, in each group that covers the sequence."""
    return [
        len(group.blocks_of(request.request_id)) * group.block_size
        for group in groups
        if group.covers_sequence
    ]


def _check_continues(asked: Allocation, coordinator: Coordinator) -> None:
    """Check that a request with blocks takes no hits, and loads only while running (KV-GRP-9)."""
    is_running = coordinator.is_running(asked.name)
    if not is_running and not coordinator.holds_blocks(asked.name):
        return
    if not asked.hits.is_empty or asked.num_hit_tokens:
        raise InvalidArgumentError(
            "new_computed_blocks", asked.hits.to_lists(), "empty: the request already holds blocks"
        )
    if asked.has_load and not is_running:
        raise InvalidArgumentError(
            "num_external_computed_tokens",
            asked.num_external_tokens,
            "0: the request already holds blocks of its own",
        )


def _check_hits(
    groups: Sequence[Group],
    request: ReferenceRequest,
    hits: KVCacheBlocks,
    num_hit_tokens: int,
    *,
    has_load: bool,
    skip_at_tokens: int,
) -> None:
    """Check that hits are those of a look-up made just before (KV-MGR-8).

    A list may be short if a load brings the rest; the longest one has the stated length.
    """
    longest = 0
    for group, blocks in zip(groups, hits.groups, strict=True):
        if group.hits_end_inside and num_hit_tokens % group.block_size:
            _check_hit_inside(group, request, blocks, num_hit_tokens, has_load=has_load)
            longest = num_hit_tokens
            continue
        covered = len(blocks) * group.block_size
        is_short = covered < num_hit_tokens and group.is_cacheable
        is_long = covered > (num_hit_tokens if group.is_cacheable else 0)  # KV-COORD-14
        if is_long or (is_short and not has_load):
            raise InvalidArgumentError(
                f"new_computed_blocks[{group.index}]",
                list(blocks),
                f"blocks of {group.block_size} for num_new_computed_tokens"
                f" = {num_hit_tokens} tokens",
            )
        num_skipped = group.num_unread_tokens(skip_at_tokens) // group.block_size
        _check_hit_content(group, request, blocks, num_skipped)
        longest = max(longest, covered)
    if longest < num_hit_tokens:
        raise InvalidArgumentError(
            "num_new_computed_tokens",
            num_hit_tokens,
            f"the {longest} tokens of the longest list of hits",
        )


def _check_hit_inside(
    group: Group,
    request: ReferenceRequest,
    blocks: Sequence[int],
    num_hit_tokens: int,
    *,
    has_load: bool,
) -> None:
    """Check a hit that ends inside a block: whole blocks, then that block (KV-INSIDE-18)."""
    if has_load:
        raise InvalidArgumentError(
            "num_new_computed_tokens", num_hit_tokens, "whole blocks where external tokens come"
        )
    num_whole = num_hit_tokens // group.block_size
    if len(blocks) != num_whole + 1:
        raise InvalidArgumentError(
            f"new_computed_blocks[{group.index}]",
            list(blocks),
            f"{num_whole + 1} blocks for num_new_computed_tokens = {num_hit_tokens} tokens",
        )
    num_skipped = group.num_skipped_tokens(num_hit_tokens) // group.block_size
    _check_hit_content(group, request, blocks[:-1], num_skipped)
    if not group.has_boundary(blocks[-1], request, num_hit_tokens):
        raise StaleHitError(group.index, num_whole, blocks[-1])


def _check_hit_content(
    group: Group, request: ReferenceRequest, blocks: Sequence[int], num_skipped: int
) -> None:
    """Check that every hit block still has the key of its place, and only skipped ones are null."""
    for index, block in enumerate(blocks):
        if (index + 1) * group.hashes_per_block > len(request.block_hashes):
            raise StaleHitError(group.index, index, block)  # the request has no such block
        if block == NULL_BLOCK:
            if index < num_skipped:
                continue
            raise StaleHitError(group.index, index, block)
        block_hash = hash_of_block(request.block_hashes, index, group.hashes_per_block)
        if make_key(block_hash, group.index) not in group.pool.keys[block]:
            raise StaleHitError(group.index, index, block)


def check_caching(
    request: ReferenceRequest, num_computed_tokens: int, coordinator: Coordinator
) -> None:
    """Check that `cache_blocks` covers only tokens that exist and have slots (KV-MGR-11)."""
    if not coordinator.holds_blocks(request.request_id):
        return  # KV-ERR-4: an unknown request has nothing to cache
    most = min([request.num_tokens, *slots_of(coordinator.groups, request)])
    if num_computed_tokens > most:
        raise InvalidArgumentError(
            "num_computed_tokens",
            num_computed_tokens,
            f"at most {most}: the tokens that the request has, and holds slots for",
        )


def check_withdrawn(request_id: str, coordinator: Coordinator) -> None:
    """Check that a withdrawn request is not freed yet: its blocks must be known (KV-MGR-23)."""
    if not coordinator.holds_blocks(request_id):
        raise InvalidArgumentError("request", request_id, "one that holds blocks")


def check_partial(
    request: ReferenceRequest,
    group: int,
    num_tokens: int,
    groups: Sequence[Group],
    config: ManagerConfig,
) -> None:
    """Check that a partial entry ends at a hash inside a block of the request (KV-PART-1)."""
    if not 0 <= group < len(groups):
        raise InvalidArgumentError("group", group, f"an int in 0 … {len(groups) - 1}")
    size = groups[group].block_size
    hash_size = config.hash_block_size_tokens or 1
    knows_states = groups[group].is_mamba and groups[group].hits_end_inside  # KV-INSIDE-18
    is_cached = config.enable_caching and groups[group].is_cacheable
    if not is_cached or size <= hash_size or knows_states:
        raise InvalidArgumentError(
            "group", group, "a group that is cached, its block size above the hash block size"
        )
    slots = len(groups[group].blocks_of(request.request_id)) * size
    limit = min(len(request.block_hashes) * hash_size, slots)
    if num_tokens % hash_size or num_tokens % size == 0 or num_tokens > limit:
        raise InvalidArgumentError(
            "num_tokens",
            num_tokens,
            f"a multiple of {hash_size}, not of {size}, and at most {limit}",
        )


def each(field: str, values: Sequence[T]) -> Iterator[T]:
    """Yield the values one by one: a range may be longer than any list.

    A set is not accepted: the order of ids matters.
    """
    if not issubclass(type(values), Sequence):
        raise InvalidArgumentError(field, values, "a sequence")
    try:
        yield from values
    except (NotImplementedError, TypeError) as error:  # a memoryview of objects, or of one
        raise InvalidArgumentError(field, values, "a sequence that can be read") from error


def block_ids(ids: Sequence[int], num_blocks: int, *, field: str = "block_ids") -> list[int]:
    """Return the ids as a list of exact ints, each a block of the pool (KV-ERR-3)."""
    blocks = []
    for block in each(field, ids):
        if not is_int(block) or not 0 <= exact(block) < num_blocks:
            raise UnknownBlockError(block, num_blocks)
        blocks.append(exact(block))
    return blocks


def check_not_set_aside(held: Sequence[int], reserved: Sequence[int]) -> None:
    """Check that no reserved block is held: these are never allocated (KV-POOL-19)."""
    for block in held:
        if block in reserved:
            raise InvalidArgumentError("block_ids", block, "one that was not set aside at start")


def check_held(block_ids: Sequence[int], popped: Sequence[int]) -> None:
    """Check that no block is held or popped more often than can be counted (KV-POOL-21)."""
    already = Counter(popped)
    for block, number in Counter(block_ids).items():
        if block != NULL_BLOCK and already[block] + number > HELD_MAX:
            raise InvalidArgumentError("block_ids", block, f"held at most {HELD_MAX} times")


def check_popped(released: Sequence[int], popped: Sequence[int]) -> None:
    """Check that every returned reference was popped or held (KV-POOL-9)."""
    held = Counter(popped)
    for block, number in Counter(released).items():
        if block != NULL_BLOCK and number > held[block]:
            raise BlockReleaseError(block, number, held[block])
