"""Recount the search for a common hit from what is cached (KV-COORD-4 … KV-COORD-10).

For the situations of a run: how many rounds it took, and whether blocks were dropped. Plain loops
over the sentences of the rules; nothing here shares code with an implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvspec.config import ManagerConfig
from kvspec.snapshot import Snapshot
from kvspec.specs import LayerSpec


@dataclass
class Search:
    """The result of a search.

    `rounds`: how often the groups were asked in turn. `dropped`: a look-up gave up a block.
    `looked_further`: one that drops asked for a block more than the length, and kept the length.
    """

    length_tokens: int
    rounds: int = 0
    dropped: bool = False
    looked_further: bool = False


@dataclass(frozen=True)
class Look:
    """The input of one look-up of an attention group."""

    spec: LayerSpec
    is_cached: Callable[[int], bool]
    alignment: int
    within: int
    drop: bool


def search(
    config: ManagerConfig,
    specs: Sequence[LayerSpec],
    snapshot: Snapshot,
    hashes: Sequence[bytes],
    num_tokens: int,
) -> Search:
    """Search for the hit of a request of this length, with these hashes."""
    limit_tokens = max(0, num_tokens - max(1, config.hash_lookahead_tokens))  # KV-MGR-1
    groups = attention_groups(config, specs)
    alignment = config.scheduler_block_size_tokens or 1
    found, verified = Search(limit_tokens), set[int]()
    while True:
        before = found.length_tokens
        for number, (spec, members, is_eagle) in enumerate(groups):
            size = spec.block_size
            if spec.is_full_attention and found.rounds:
                found.length_tokens -= found.length_tokens % size
                continue
            unverified = is_eagle and number not in verified
            drop = unverified and not spec.is_state
            within = found.length_tokens
            if drop:
                within = min(within + size, limit_tokens)
            cached = _cached(config, snapshot, hashes, size, members)
            answer = _longest(Look(spec, cached, alignment, within, drop), config) * size
            found.dropped |= drop and answer > 0
            found.looked_further |= answer == found.length_tokens < within
            if unverified:
                verified.add(number)
            elif answer < found.length_tokens:
                verified.clear()
            found.length_tokens = answer
        found.rounds += 1
        is_simple = len(groups) == 2 and groups[0][0].is_full_attention
        if found.length_tokens == before or is_simple:
            return found


def attention_groups(
    config: ManagerConfig, specs: Sequence[LayerSpec]
) -> list[tuple[LayerSpec, list[int], bool]]:
    """Return spec, members and whether it is an eagle group, full attention first (KV-COORD-4)."""
    flags = [group.is_eagle_group for group in config.kv_cache.groups]
    if config.use_eagle and not any(flags):
        flags = [True] * len(flags)
    if config.hash_lookahead_tokens:  # KV-HASH-14
        flags = [False] * len(flags)
    members: dict[tuple[type[LayerSpec], LayerSpec], list[int]] = {}
    for number, spec in enumerate(specs):
        if spec.prefix_cacheable:  # KV-COORD-14
            members.setdefault((type(spec), spec), []).append(number)
    found = [(key[1], own, any(flags[n] for n in own)) for key, own in members.items()]
    return sorted(found, key=lambda group: not group[0].is_full_attention)


def _cached(
    config: ManagerConfig,
    snapshot: Snapshot,
    hashes: Sequence[bytes],
    size: int,
    members: Sequence[int],
) -> Callable[[int], bool]:
    """Return a test of whether block i is cached in every member."""
    per_block = size // (config.hash_block_size_tokens or 1)

    def is_cached(index: int) -> bool:
        number = (index + 1) * per_block - 1
        return number < len(hashes) and all(
            hashes[number] + group.to_bytes(4, "big") in snapshot.lookup_order for group in members
        )

    return is_cached


def _longest(look: Look, config: ManagerConfig) -> int:
    """Count the blocks of the longest hit of one attention group."""
    size, most = look.spec.block_size, look.within // look.spec.block_size
    if look.spec.is_state:
        ends = (end for end in range(most, 0, -1) if end * size % look.alignment == 0)
        return next((end for end in ends if look.is_cached(end - 1)), 0)
    if look.spec.chunk_tokens:
        chunk = look.spec.chunk_tokens
        first = end = look.within // chunk * chunk // size
        while end < most and look.is_cached(end):
            end += 1
        return end if end > first or config.policy.chunked_null_prefix_is_hit else 0
    if look.spec.window_tokens:
        run = max(-(-(look.spec.window_tokens - 1) // size) + look.drop, 1)
        for end in range(most, run - 1, -1):
            aligned = (end - look.drop) * size % look.alignment == 0
            if aligned and all(look.is_cached(index) for index in range(end - run, end)):
                return end - look.drop
    return _from_the_start(look, most)


def _from_the_start(look: Look, most: int) -> int:
    """Count the run from block 0 cut to the alignment (KV-FULL-2 … KV-FULL-4, KV-SW-4, KV-SW-5)."""
    size = look.spec.block_size
    end = 0
    while end < most and look.is_cached(end):
        end += 1
    if look.spec.window_tokens:
        while end and (end - look.drop) * size % look.alignment:
            end -= 1
        while end * size % look.alignment:
            end -= 1
    end -= look.drop and end > 0
    while end * size % look.alignment:
        end -= 1
    return end
