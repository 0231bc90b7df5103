"""The longest hit of one group of equal specs, by enumeration of all candidate block lists.

A candidate is a tuple with one entry per block: True for the cached block, False for null.
Each type defines which candidates are hits; the longest is taken. Nothing here scans, and nothing
is shared with an implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from kvspec.specs import LayerSpec, SlidingWindowSpec

Candidate: TypeAlias = "tuple[bool, ...]"


@dataclass(frozen=True)
class Question:
    """A look-up.

    `cached`: the positions that every member of the attention group has in the cache. `limit`: L in
    tokens. `drop`: the last block is given up. `alignment`: A in tokens. `null_prefix_is_hit`: the
    policy for chunked local attention.
    """

    spec: LayerSpec
    cached: frozenset[int]
    limit: int
    drop: bool
    alignment: int
    null_prefix_is_hit: bool = True

    @property
    def num_blocks(self) -> int:
        return self.limit // self.spec.block_size

    def is_aligned(self, num_blocks: int) -> bool:
        """Check whether hits may end behind this many blocks."""
        return num_blocks * self.spec.block_size % self.alignment == 0

    def is_run(self, start: int, end: int) -> bool:
        """Check that blocks `start` … `end - 1` lie within the limit and are all cached."""
        return start >= 0 and end <= self.num_blocks and self.cached >= set(range(start, end))


FEW_BLOCKS = 10
"""Up to this many blocks all lists are tried: twice as many with each block."""


def candidates(question: Question) -> Iterator[Candidate]:
    """Yield all block lists within the limit that contain only cached blocks.

    In long texts, yield only those without null behind a block: a hit of any type is one.
    """
    if question.num_blocks > FEW_BLOCKS:
        for length in range(question.num_blocks + 1):
            for start in range(length + 1):
                if question.is_run(start, length):
                    yield (*[False] * start, *[True] * (length - start))
        return
    for length in range(question.num_blocks + 1):
        choices = [(False, True) if i in question.cached else (False,) for i in range(length)]
        yield from product(*choices)


def longest_hit(question: Question) -> Candidate:
    for is_hit in hits_of(question):
        found = [candidate for candidate in candidates(question) if is_hit(candidate)]
        if found:
            longest = max(len(candidate) for candidate in found)
            (answer,) = [candidate for candidate in found if len(candidate) == longest]
            is_hit_of_nulls = question.null_prefix_is_hit or any(answer)  # KV-POL-4
            is_chunked = question.spec.chunk_tokens
            return answer if is_hit_of_nulls or not is_chunked else ()
    return ()


def hits_of(q: Question) -> list[Callable[[Candidate], bool]]:
    """Return the definitions of a hit; a later one counts only if none fits an earlier one."""
    if q.spec.window_tokens:
        return [lambda c: fills_a_window(q, c), lambda c: starts_the_text(q, c)]
    if q.spec.chunk_tokens:
        return [lambda c: is_in_the_chunk(q, c)]
    if q.spec.is_state:
        return [lambda c: ends_with_a_state(q, c)]
    if q.spec.is_full_attention:
        return [lambda c: is_a_prefix(q, c)]
    return []  # KV-CROSS-3


def is_a_prefix(q: Question, candidate: Candidate) -> bool:
    """Check KV-FULL-2 … KV-FULL-4: no null, aligned; with a drop, one more cached block."""
    behind = len(candidate) + (1 if q.drop and candidate else 0)
    return all(candidate) and q.is_aligned(len(candidate)) and q.is_run(0, behind)


def blocks_of_a_window(spec: SlidingWindowSpec) -> int:
    """Count the blocks of the tokens seen by the token at a block boundary."""
    boundary = spec.block_size * (spec.sliding_window + 1)
    seen = range(boundary - spec.sliding_window + 1, boundary)
    return len({token // spec.block_size for token in seen})


def fills_a_window(q: Question, candidate: Candidate) -> bool:
    """Check KV-SW-2, KV-SW-3: null, then the run; a drop leaves its last block out."""
    assert isinstance(q.spec, SlidingWindowSpec)
    drop = 1 if q.drop else 0
    run = max(blocks_of_a_window(q.spec) + drop, 1)
    start = len(candidate) + drop - run
    return (
        q.is_aligned(len(candidate))
        and q.is_run(start, start + run)
        and candidate == (*[False] * start, *[True] * (len(candidate) - start))
    )


def starts_the_text(q: Question, candidate: Candidate) -> bool:
    """Check KV-SW-4, KV-SW-5: without null, from block 0; `k` blocks are cached there.

    First the end after the drop is aligned, at or before the last cached block; then an end itself,
    at or before that one; with a drop the hit is aligned and shorter by at least one.
    """
    if not all(candidate) or not q.is_run(0, len(candidate)):
        return False
    if not q.drop:
        return q.is_aligned(len(candidate))
    first_cuts = [k for k in range(1, q.num_blocks + 1) if q.is_run(0, k) and q.is_aligned(k - 1)]
    first = max(first_cuts, default=0)
    second = max(k for k in range(first + 1) if q.is_aligned(k))
    return q.is_aligned(len(candidate)) and (len(candidate) < second or not candidate)


def is_in_the_chunk(q: Question, candidate: Candidate) -> bool:
    """Check KV-CHUNK-2, KV-CHUNK-7: null before the next token's chunk, then cached blocks."""
    assert q.spec.chunk_tokens
    chunk, size = q.spec.chunk_tokens, q.spec.block_size
    start = len(candidate) * size // chunk * chunk // size
    return candidate == (*[False] * start, *[True] * (len(candidate) - start))


def ends_with_a_state(q: Question, candidate: Candidate) -> bool:
    """Check KV-MAMBA-3: nothing, or null and one state at an aligned end; never a drop."""
    if not candidate:
        return True
    return q.is_aligned(len(candidate)) and candidate[-1] and not any(candidate[:-1])
