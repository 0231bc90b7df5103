"""Each type's look-up returns its longest hit: every cache of a few blocks, in both twins.

Statement: for up to five blocks, any of which are cached, `longest_hit` of kvref's groups and
`look_up` of `kvfast._core.lookup` return what the rules say (KV-FULL-2 … KV-FULL-4, KV-SW-2 …
KV-SW-5, KV-CHUNK-2, KV-CHUNK-7, KV-MAMBA-3), for every limit in tokens, window, chunk, alignment
and drop within the bounds below: the length, and for each of one or two members of the attention
group the null entries and the blocks of the others. Both run unchanged; stubs replace
the searches for one key and for a run of keys (`key_map.py`).

The rules' hit is the longest, except where nulls alone are no hit (KV-POL-4), where a chunk
ends inside a block, and for a window with a drop whose blocks are shorter than the alignment, which
may lose a short prefix (KV-SW-5): each of these is shown to be an exception.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

from kvfast._core import kinds
from kvfast._core.lookup import Lookup
from kvfast._core.shape import Shape
from kvref.groups.base import LookUp
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from proofs._z3 import Ledger
from proofs.code._groups import GROUPS
from proofs.code._planted import Planted

ASSUMES = ("a search finds the entry that was added first under a key, and no other",)
GUARANTEES = ("each type's look-up answers its longest hit",)

NUM_BLOCKS = 5
BLOCK = 3
WINDOWS = (1, 2, 4, 5, 7, 10)
Answer = tuple[tuple[int, ...], ...]
"""Of each member its entries; 0 is null."""


@dataclass(frozen=True)
class Case:
    """A look-up; `per`: blocks of an alignment, `reach`: of the window or chunk, in tokens."""

    kind: str
    cached: frozenset[int]
    tokens: int
    reach: int = 1
    drop: bool = False
    per: int = 1
    nulls_hit: bool = True
    members: int = 1

    @property
    def limit(self) -> int:
        """Whole blocks that may be hit."""
        return self.tokens // BLOCK

    def runs(self, first: int, end: int) -> bool:
        """Check that these blocks are cached and within the limit."""
        return first >= 0 and end <= self.limit and all(i in self.cached for i in range(first, end))

    def run_from(self, first: int) -> int:
        """Return where the run of cached blocks from `first` on ends."""
        return max(end for end in range(first, self.limit + 1) if self.runs(first, end))

    def cut(self, length: int) -> int:
        """Return the largest aligned length up to this one."""
        return length // self.per * self.per


def cases() -> Iterator[Case]:
    caches = [
        frozenset(i for i in range(NUM_BLOCKS) if bits >> i & 1) for bits in range(1 << NUM_BLOCKS)
    ]
    for cached, tokens in product(caches, range(BLOCK * NUM_BLOCKS + 1)):
        for drop, per in product((False, True), (1, 2, 3)):
            yield Case("full", cached, tokens, drop=drop, per=per, members=1 + drop)
            for reach in WINDOWS:
                yield Case("sliding", cached, tokens, reach, drop, per, members=1 + reach % 2)
        for reach, nulls_hit in product(range(1, 2 * BLOCK + 2), (False, True)):
            yield Case("chunked", cached, tokens, reach, nulls_hit=nulls_hit)
        for per in (1, 2, 3):
            yield Case("mamba", cached, tokens, per=per, members=2)


# What the rules say: the length, and how many entries are null before the blocks.


def ruled(case: Case) -> tuple[int, int]:
    """Return the length of the rules' hit, and its nulls."""
    if case.kind == "full":  # KV-FULL-2 … KV-FULL-4
        return case.cut(max(case.run_from(0) - case.drop, 0)), 0
    if case.kind == "sliding":
        return ruled_window(case)
    if case.kind == "chunked":
        return ruled_chunk(case, case.tokens)
    ends = (n for n in range(1, case.limit + 1) if n % case.per == 0 and n - 1 in case.cached)
    longest = max(ends, default=0)  # KV-MAMBA-3
    return longest, max(longest - 1, 0)


def blocks_of_window(case: Case) -> int:
    """Return the fewest blocks that hold the W - 1 tokens before a boundary."""
    return next(n for n in range(NUM_BLOCKS + 1) if n * BLOCK >= case.reach - 1)


def ruled_window(case: Case) -> tuple[int, int]:
    """Return the rightmost run that fills a window, or a short one (KV-SW-2 … KV-SW-5)."""
    drop = int(case.drop)
    need = max(blocks_of_window(case) + drop, 1)
    for end in range(case.limit, need - 1, -1):
        if (end - drop) % case.per == 0 and case.runs(end - need, end):
            return end - drop, end - need
    short = case.run_from(0)
    while short > 0 and (short - drop) % case.per:
        short -= 1
    return case.cut(max(case.cut(short) - drop, 0)), 0


def ruled_chunk(case: Case, tokens: int) -> tuple[int, int]:
    """Return the end of the run in the chunk, and the nulls before it (KV-CHUNK-2, KV-CHUNK-7)."""
    start = tokens - tokens % case.reach
    first, end = start // BLOCK, start // BLOCK
    while (end + 1) * BLOCK <= tokens and end in case.cached:
        end += 1
    if end == first and start % BLOCK:
        return ruled_chunk(case, first * BLOCK)
    return (end, first) if end > first or case.nulls_hit else (0, 0)


def longest(case: Case) -> int:
    """Return the longest hit: everything read from there on is cached."""

    def is_hit(n: int) -> bool:
        if n == 0:
            return True
        first = {
            "full": 0,
            "sliding": n - max(blocks_of_window(case), 1 - case.drop),
            "chunked": n * BLOCK // case.reach * case.reach // BLOCK,
            "mamba": n - 1,
        }[case.kind]
        return n % case.per == 0 and case.runs(max(first, 0), n + case.drop)

    return max(n for n in range(case.limit + 1) if is_hit(n))


def is_exception(case: Case) -> bool:
    """Check whether the rules may return less than the longest hit."""
    if case.kind == "chunked":
        return not case.nulls_hit or case.reach % BLOCK > 0
    return case.kind == "sliding" and case.drop and case.per > 1


def wanted(case: Case) -> Answer:
    """Return the entries that the rules ask for."""
    length, nulls = ruled(case)
    return tuple(
        (0,) * nulls + tuple(block_of(member, i) for i in range(nulls, length))
        for member in range(case.members)
    )


def block_of(member: int, i: int) -> int:
    """Return a member's block for block i of the text."""
    return 10 * member + i + 1


# The code.


def of_kvref(case: Case) -> Answer:
    """Look up with kvref's group."""
    group: Any = object.__new__(GROUPS[case.kind])
    group.block_size, group.window, group.chunk, group.extra = BLOCK, case.reach, case.reach, 0
    group.context = SimpleNamespace(null_prefix_is_hit=case.nulls_hit)

    def find_in_all(asked: LookUp, i: int) -> list[int] | None:
        return [block_of(m, i) for m in asked.members] if i in case.cached else None

    group.find_in_all = find_in_all
    asked = LookUp((), case.tokens, range(case.members), case.drop, case.per * BLOCK)
    return tuple(map(tuple, group.longest_hit(asked)))


class Keys:
    """Searches among the keys of a case, two hashes a block."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def find(self, request: object, number: int, g: int) -> int:
        """Return the block of a block's last hash; only the last member lacks missing ones."""
        i, rest = divmod(number, 2)
        lacks = i not in self.case.cached and g == self.case.members - 1
        return 0 if rest == 0 or lacks else block_of(g, i)

    def find_run(
        self, request: object, per: int, g: int, first: int, limit: int, out: Any, base: int
    ) -> int:
        """Find one block after the other, from the first on."""
        while first < limit and (block := self.find(request, (first + 1) * per - 1, g)):
            out[base + first] = block
            first += 1
        return first


KINDS: Mapping[str, kinds.Kind] = {
    "full": kinds.FULL,
    "sliding": kinds.SLIDING,
    "chunked": kinds.CHUNKED,
    "mamba": kinds.MAMBA,
}


def of_kvfast(case: Case) -> Answer:
    """Look up with kvfast, whose attention group is the second of two."""
    shape: Any = object.__new__(Shape)
    n = case.members
    shape.num_groups, shape.num_attention = n, 1
    shape.first_member, shape.members = [0, 0, n], list(range(n))
    shape.kind, shape.block_size = [KINDS[case.kind]] * n, [BLOCK] * n
    shape.reach, shape.extra, shape.hashes_per_block = [case.reach] * n, [0] * n, [2] * n
    shape.null_prefix_is_hit = case.nulls_hit
    pool: Any = SimpleNamespace(keys=Keys(case), has_partial=False, block_of=int)
    made: Any = Lookup(shape, pool)
    made.make_room(NUM_BLOCKS)
    made.hits[:] = memoryview(bytearray(b"\xff" * 4 * len(made.hits))).cast("i")
    length = made.look_up(1, None, case.tokens, case.drop, case.per)
    return tuple(tuple(made.hits[g * made.stride : g * made.stride + length]) for g in range(n))


TWINS = {"kvref": of_kvref, "kvfast": of_kvfast}


def first_wrong(twin: str) -> Case | None:
    """Return the first case in which a twin differs from the rules or raises."""
    for case in cases():
        try:
            if TWINS[twin](case) != wanted(case):
                return case
        except Exception:
            return case
    return None


def check_longest(ledger: Ledger) -> None:
    """Check that the rules give the longest hit outside the exceptions, which exist."""
    lost = {case.kind for case in cases() if is_exception(case) and ruled(case)[0] < longest(case)}
    ledger.agree("what is lost", lost == {"sliding", "chunked"})
    wrong = (c for c in cases() if not is_exception(c) and ruled(c)[0] != longest(c))
    ledger.agree("the longest", next(wrong, None) is None)


PLANTED = (
    Planted("KV-FULL-2",
        (FullAttentionGroup, "longest_hit", "while num_blocks < asked",
         "while num_blocks + 1 < asked"),
        (Lookup, "look_up_full", "request, 0, limit)", "request, 0, limit - 1)")),
    Planted("KV-FULL-3", (Lookup, "look_up_full", "end -= 1", "end -= 2")),
    Planted("KV-FULL-4", (Lookup, "look_up_full", "end - end % per", "end")),
    Planted("KV-SW-2",
        (SlidingWindowGroup, "longest_hit", "range(limit, need - 1, -1)", "range(limit, need, -1)"),
        (Lookup, "look_up_sliding", "while end >= need", "while end > need")),
    Planted("KV-SW-3",
        (SlidingWindowGroup, "longest_hit", "[NULL_BLOCK] * (end - need)",
         "[NULL_BLOCK] * (end - need + 1)"),
        (Lookup, "look_up_sliding", "self.put_null(a, start)", "self.put_null(a, start - 1)")),
    Planted("KV-SW-4",
        (SlidingWindowGroup, "_run_from_the_start", "length < len(hits)", "length < len(hits) - 1"),
        (Lookup, "look_up_sliding", "request, 0, limit), dropped",
         "request, 0, limit - 1), dropped")),
    Planted("KV-SW-5",
        (SlidingWindowGroup, "_run_from_the_start", "is_aligned(length - dropped)",
         "is_aligned(length)"),
        (Lookup, "short_run", "(length - dropped) % per", "length % per")),
    Planted("KV-CHUNK-2",
        (ChunkedLocalGroup, "longest_hit", "first = start // self.block_size",
         "first = start // self.block_size + 1"),
        (Lookup, "look_up_chunked", "first = self.shape.skipped(g, tokens)",
         "first = self.shape.skipped(g, tokens) + 1")),
    Planted("KV-CHUNK-7",
        (ChunkedLocalGroup, "longest_hit", "num_null_tokens < start", "num_null_tokens <= start"),
        (Lookup, "look_up_chunked", "first * size % reach > 0", "first * size % reach > 1")),
    Planted("KV-MAMBA-3",
        (MambaGroup, "longest_hit", "(index + 1) * self", "index * self"),
        (Lookup, "look_up_mamba", "request, end - 1)", "request, end)")),
)  # fmt: skip


def check_planted(ledger: Ledger) -> None:
    """Find each mistake in its twin, and a mistake in both by either change."""
    for planted in PLANTED:
        for each in planted.each():
            with each.done():
                found = any(map(first_wrong, TWINS))
            ledger.agree(f"mistake: {each}", found)


def main() -> int:
    """Check everything; return 0 if each answer is the expected one."""
    ledger = Ledger("look_ups")
    for twin in TWINS:
        ledger.agree(f"{twin}: {first_wrong(twin)}", first_wrong(twin) is None)
    check_longest(ledger)
    check_planted(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
