"""How far blocks are cached, and which: kvref and kvfast follow the rules, for all integers.

- The bound (KV-COORD-13, KV-GRP-11): in a call for n tokens a group caches the blocks behind its
  count that end within n; among several groups those within the last multiple of the alignment,
  and with a drop one block more. `cache_blocks` of kvref's coordinators and groups and
  `Allocator.cache` of kvfast run unchanged.
- The masks (KV-RET-1 … KV-RET-5, KV-RET-7): which of these are worth caching, in a window and among
  states, without retention, with interval 0 and with any other. `is_worth_caching` of kvref's
  groups, and `caches_all` and `is_worth_caching` of kvfast's `Shape`, run unchanged.

All numbers are unknown ints; both twins are compared with the formulas of the rules, so that a
mistake made in both is seen. Assumptions: the alignment is a multiple of the block size, and an
interval one of the alignment (KV-COORD-2, KV-CFG-4, KV-CFG-7); replays before a drop (KV-POL-20)
are left out. Stubs replace the caching of a single block; the number of
tokens that a call is for is proved in `slots.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import z3

from kvfast._core import allocator, kinds, shape
from kvfast._core.allocator import Allocator
from kvfast._core.shape import Shape
from kvref.coordinator import Coordinator
from kvref.groups import base
from kvref.groups import mamba as states
from kvref.groups import sliding_window as windows
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.hybrid import HybridCoordinator
from proofs._z3 import Ledger, Statement, Term, cdiv, smaller
from proofs.code._paths import Way, merged, merged_each, picking_in_one_way
from proofs.code._planted import TWINS, Planted, check_planted

ASSUMES = ("sizes are multiples as a configuration demands",)
GUARANTEES = ("both hand the same blocks to the cache",)

BLOCK, PER, EVERY, WINDOW = z3.Ints("block_size per every window")
INDEX, PROMPT, LAST, JUNCTION = z3.Ints("index prompt last junction")
TOKENS, COUNT, HASHES = z3.Ints("tokens count hashes")
ALIGNMENT = PER * BLOCK
"""A multiple of the block size, for masks; for the bound it is any number."""
INTERVALS: dict[str, Term | None] = {
    "no retention": None,
    "interval 0": z3.IntVal(0),
    "an interval": EVERY * ALIGNMENT,
}
DROPS = (False, True)


def known() -> tuple[Term, ...]:
    """State that sizes are at least 1, and nothing is negative."""
    sizes = (BLOCK, PER, EVERY, WINDOW, PROMPT, LAST)
    return (
        *(size >= 1 for size in sizes),
        INDEX >= 0,
        TOKENS >= 0,
        COUNT >= 0,
        HASHES >= 0,
        JUNCTION >= 0,
    )


# The bound.


def reference_bound(is_hybrid: bool, drops: bool, looks_ahead: bool) -> dict[str, Term]:
    """Return first and end of the blocks that kvref caches, or -1, and its new count."""

    def run(way: Way) -> dict[str, object]:
        noted: dict[str, object] = {"first": -1, "end": -1}

        def stored(request: object, *, first_block: object, end_block: object, **_: object) -> None:
            noted.update(first=first_block, end=end_block)

        group: Any = object.__new__(FullAttentionGroup)
        group.block_size = way.number(BLOCK)
        group.hashes_per_block = 1
        group.drops_eagle_block = drops
        group.num_cached = {"r": way.number(COUNT)}
        group.block_lists = {}
        group.index, group.spec = 0, None
        group.events = SimpleNamespace(stored=stored)
        group.context = SimpleNamespace(has_partial_tails=False)
        coordinator: Any = object.__new__(HybridCoordinator if is_hybrid else Coordinator)
        coordinator.groups = (group,)
        coordinator.alignment = way.number(z3.Int("alignment"))
        hashed = way.number(HASHES * BLOCK)
        request = SimpleNamespace(request_id="r", block_hashes=(), num_hashed_tokens=hashed)
        coordinator.cache_blocks(request, way.number(TOKENS))
        return noted | {"cached": group.num_cached["r"]}

    with ExitStack() as stack:
        stack.enter_context(picking_in_one_way(sys.modules[HybridCoordinator.__module__], base))
        stack.enter_context(patch.object(base, "range", lambda *_: (), create=True))
        stack.enter_context(patch.object(base, "hash_of_block", lambda *_: b""))
        return merged_each(run)


class Handed:
    """A stub for kvfast's pool, and for blocks cached one by one."""

    def __init__(self) -> None:
        self.noted: dict[str, object] = {"first": -1, "end": -1}

    def register(self, block: int, request: object, number: Any, g: int, covered: Any) -> None:
        """Note one block, by the number of its hash, the last of two."""
        first = -2 if number + 1 != covered or covered % 2 else covered // 2 - 1
        self.noted |= {"first": first, "end": first + 1}

    def register_run(
        self, tables: object, start: int, first: object, end: object, *_: object
    ) -> None:
        """Note a run of blocks."""
        self.noted |= {"first": first, "end": end}

    def __getitem__(self, place: object) -> int:
        return 1


def fast_bound(is_hybrid: bool, drops: bool, looks_ahead: bool) -> dict[str, Term]:
    """Return the same for kvfast."""

    def run(way: Way) -> dict[str, object]:
        handed = Handed()

        made: Any = object.__new__(Allocator)
        made.rounds_down = is_hybrid
        made.shape = SimpleNamespace(
            num_groups=1,
            alignment=way.number(z3.Int("alignment")),
            block_size=[way.number(BLOCK)],
            drops=[int(drops)],
            hashes_per_block=[2],
            is_cached=lambda group: True,
            is_mamba=lambda group: False,
            ahead=int(looks_ahead),
            tails=[0],
            returns=[0],
        )
        made.shape.full_blocks = partial(Shape.full_blocks, made.shape)
        made.tables = SimpleNamespace(cached=[way.number(COUNT + 1)], start=[0], arena=handed)
        made.pool, made.events, made.caches_all = handed, None, [1]
        hashes = way.number(2 * HASHES + z3.Int("rest"))
        made.cache(0, SimpleNamespace(num_hashes=hashes), way.number(TOKENS))
        return handed.noted | {"cached": made.tables.cached[0] - 1}

    with picking_in_one_way(allocator):
        return merged_each(run)


def ruled_bound(is_hybrid: bool, drops: bool) -> dict[str, Term]:
    """Return the bound of KV-COORD-13, KV-GRP-11 and KV-HASH-15."""
    aligned = TOKENS / z3.Int("alignment") * z3.Int("alignment") if is_hybrid else TOKENS
    further = z3.If(aligned > 0, smaller(TOKENS, aligned + BLOCK), aligned)
    end = smaller((further if is_hybrid and drops else aligned) / BLOCK, HASHES)
    more = end > COUNT
    noted = {"first": z3.If(more, COUNT, -1), "end": z3.If(more, end, -1)}
    return noted | {"cached": z3.If(more, end, COUNT)}


BOUNDS: dict[str, Callable[[bool, bool, bool], dict[str, Term]]] = {
    "kvref": reference_bound,
    "kvfast": fast_bound,
}


def bounds(*twins: str) -> Iterator[Statement]:
    """Yield the claims that these cache the blocks of the rules; all full ones have hashes."""
    for twin, is_hybrid, drops, ahead in product(twins, DROPS, DROPS, DROPS):
        wanted, found = ruled_bound(is_hybrid, drops), BOUNDS[twin](is_hybrid, drops, ahead)
        hashed = z3.Or(HASHES >= TOKENS / BLOCK, ahead)
        yield Statement(
            f"{twin}: the bound, several groups {is_hybrid}, drop {drops}, look-ahead {ahead}",
            (*known(), z3.Int("alignment") >= 1, z3.Int("rest") / 2 == 0, hashed),
            z3.And(*(found[each] == wanted[each] for each in wanted)),
        )


# The masks.


def reference_mask(name: str, interval: Term | None, drops: bool) -> Term:
    """State that kvref takes a block to be worth caching."""
    kind: type[Any] = SlidingWindowGroup if name == "window" else MambaGroup

    def run(way: Way) -> object:
        group: Any = object.__new__(kind)
        group.block_size = way.number(BLOCK)
        group.window = way.number(WINDOW)
        group.drops_eagle_block = drops
        group.context = SimpleNamespace(
            alignment_tokens=way.number(ALIGNMENT),
            retention_interval_tokens=None if interval is None else way.number(interval),
            replays_before_drop=False,
        )
        request = SimpleNamespace(
            num_prompt_tokens=way.number(PROMPT),
            num_last_tokens=way.number(LAST),
            num_tokens=way.number(z3.Int("all tokens")),
            junction_tokens=way.number(JUNCTION),
        )
        return group.is_worth_caching(way.number(INDEX), request)

    with picking_in_one_way(windows, states, base), patch.object(base, "exact", lambda n: n):
        return merged(run)


def fast_mask(name: str, interval: Term | None, drops: bool) -> Term:
    """State that kvfast takes a block to be worth caching."""

    def run(way: Way) -> object:
        made: Any = object.__new__(Shape)
        made.kind = [kinds.SLIDING if name == "window" else kinds.MAMBA]
        made.block_size = [way.number(BLOCK)]
        made.reach = [way.number(WINDOW)]
        made.drops = [int(drops)]
        made.alignment = made.scheduler_block = way.number(ALIGNMENT)
        made.num_last = way.number(LAST)
        made.retention = -1 if interval is None else way.number(interval)
        every = made.caches_all(0)
        made.replays_before_drop = False
        return every or made.is_worth_caching(
            0, way.number(INDEX), way.number(PROMPT), way.number(JUNCTION)
        )

    with picking_in_one_way(shape):
        return merged(run)


def ruled_mask(name: str, interval: Term | None, drops: bool) -> Term:
    """State that KV-RET-1 … KV-RET-5 take a block to be worth caching."""
    replayed = z3.If(PROMPT > LAST, PROMPT - LAST, 0)
    replay = replayed / ALIGNMENT * PER  # in blocks: the alignment is a multiple of them
    d = int(drops)
    if name == "state":
        if interval is None:
            return z3.BoolVal(True)
        kept = z3.BoolVal(False)
        if interval is not INTERVALS["interval 0"]:
            kept = (INDEX + 1) * BLOCK % interval == 0
        return z3.Or(kept, replay == INDEX + 1, *(end == INDEX + 1 for end in junctions(d)))
    tail = cdiv(WINDOW - 1, BLOCK) + d
    again = z3.Or(
        *(z3.And(end + d - tail <= INDEX, end + d > INDEX) for end in (replay, *junctions(d)))
    )
    if interval is INTERVALS["interval 0"]:
        return again
    p = PER if interval is None else EVERY * PER
    kept = z3.Or(tail >= p, z3.And(d <= INDEX, (INDEX - d) % p >= p - tail))
    return kept if interval is None else z3.Or(kept, again)


def junctions(drop: int) -> list[Term]:
    """Return the ends in blocks, -1 for none, up to which a junction keeps some (KV-RET-7)."""
    ends = [JUNCTION] if drop == 0 else [JUNCTION, JUNCTION - BLOCK]
    return [z3.If(JUNCTION > 0, end / ALIGNMENT * PER, -1) for end in ends]


def in_blocks() -> tuple[Term, ...]:
    """Return lemmas that count multiples of a block in blocks: proved, then used."""
    ends = [each / ALIGNMENT for each in (PROMPT - LAST, JUNCTION, JUNCTION - BLOCK)]
    return (
        ALIGNMENT / BLOCK == PER,
        EVERY * ALIGNMENT / BLOCK == EVERY * PER,
        *(end * ALIGNMENT / BLOCK == end * PER for end in ends),
        *((end * ALIGNMENT == (INDEX + 1) * BLOCK) == (end * PER == INDEX + 1) for end in ends),
    )


MASKS: dict[str, Callable[[str, Term | None, bool], Term]] = {
    "kvref": reference_mask,
    "kvfast": fast_mask,
}


def masks(*twins: str, names: Sequence[str] = ("window", "state")) -> Iterator[Statement]:
    """Yield the claims that these keep the blocks of the rules."""
    for twin in twins:
        for name in names:
            for text, interval in INTERVALS.items():
                for drops in DROPS:
                    wanted = ruled_mask(name, interval, drops)
                    yield Statement(
                        f"{twin}: {name}, {text}{', with a drop' if drops else ''}",
                        (*known(), *in_blocks()),
                        MASKS[twin](name, interval, drops) == wanted,
                    )


PLANTED: tuple[tuple[Callable[[str], Iterator[Statement]], Planted], ...] = (
    (bounds, Planted("KV-COORD-13",
        (HybridCoordinator, "cache_blocks", "aligned > 0", "aligned >= 0"),
        (Allocator, "cache", "and aligned > 0", "and aligned >= 0"))),
    (bounds, Planted("KV-COORD-13",
        (Allocator, "cache", "min(tokens, aligned + size)", "aligned + size"))),
    (bounds, Planted("KV-COORD-13", (Allocator, "cache", "if self.rounds_down:", "if False:"))),
    (bounds, Planted("KV-GRP-11",
        (base.Group, "cache_blocks", "max(first, end)", "max(first, end) - 1"),
        (Allocator, "cache_range", "= 1 + end", "= end"))),
    (bounds, Planted("KV-GRP-11",
        (base.Group, "cache_blocks", "if told >= end", "if told + 1 >= end"),
        (Allocator, "cache", "max(self.tables.cached[at] - 1, 0)", "self.tables.cached[at]"))),
    (bounds, Planted("KV-HASH-15",
        (base.Group, "cache_blocks", "request.num_hashed_tokens) //",
         "request.num_hashed_tokens + self.block_size) //"),
        (Shape, "full_blocks", "min(full, num_hashes", "min(full, 1 + num_hashes"))),
    (masks, Planted("KV-RET-1",
        (SlidingWindowGroup, "is_worth_caching", ">= per_segment - need", "> per_segment - need"),
        (Shape, "is_worth_caching", ">= per_segment - need", "> per_segment - need"))),
    (masks, Planted("KV-RET-1",
        (SlidingWindowGroup, "is_worth_caching", "(block_index - shift) %", "block_index %"),
        (Shape, "is_worth_caching", "(index - shift) %", "index %"))),
    (masks, Planted("KV-RET-2",
        (SlidingWindowGroup, "is_worth_caching", "if segment_tokens > 0", "if segment_tokens > -1"),
        (Shape, "caches_all", "if self.retention == 0:", "if self.retention < -1:"))),
    (masks, Planted("KV-RET-3",
        (Shape, "is_worth_caching", "self.retention if self.retention > 0 else self.alignment",
         "self.alignment"))),
    (masks, Planted("KV-RET-4",
        (windows, "replay_boundary", "- request.num_last_tokens", "- request.num_last_tokens + 1"),
        (Shape, "is_worth_caching", "prompt_tokens - self.num_last",
         "prompt_tokens - self.num_last + 1"))),
    (masks, Planted("KV-RET-4",
        (SlidingWindowGroup, "is_worth_caching", "block_index < replay_end + shift",
         "block_index <= replay_end + shift"),
        (Shape, "is_worth_caching", "index < replay_end + shift", "index <= replay_end + shift"))),
    (masks, Planted("KV-RET-4",
        (windows, "replay_boundary", "request.num_prompt_tokens", "request.num_tokens"))),
    (masks, Planted("KV-RET-7",
        (base.Group, "retained_places", "junction - self.block_size", "junction"))),
    (masks, Planted("KV-RET-7", (Shape, "is_in_tail", "index <= last", "index < last"))),
    (partial(masks, names=("state",)), Planted("KV-RET-5",
        (MambaGroup, "is_worth_caching", "(block_index + 1) *", "block_index *"),
        (Shape, "is_worth_caching", "(index + 1) * size", "index * size"))),
    (partial(masks, names=("state",)), Planted("KV-RET-5",
        (MambaGroup, "kept_ends", "if not self.context.replays_before_drop",
         "if self.context.replays_before_drop"),
        (Shape, "is_worth_caching", "return index + 1 == replay_end", "return False"))),
)  # fmt: skip


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("caching")
    for number, lemma in enumerate(in_blocks()):
        ledger.prove(f"in blocks, {number}", known(), lemma)
    ledger.prove_and_refute(bounds(*TWINS))
    ledger.prove_and_refute(masks(*TWINS))
    check_planted(ledger, PLANTED)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
