"""Windows, chunks and states: what is skipped, read and held, for all integers.

Methods of kvref's groups and of kvfast run unchanged on unknown numbers, along every path,
and both are compared with the formulas of the rules (`_groups.py`), so that a mistake in
both is seen. Block size, window, chunk, steps and lengths are ints without bound:

- The blocks that `remove_skipped_blocks` of kvref and `remove_skipped` of kvfast replace, drafts
  and extra retained tokens included (KV-GRP-2, KV-SW-1, KV-SW-9, KV-CHUNK-1, KV-MAMBA-1,
  KV-MAMBA-5, KV-RSWA-1); those that may be null in a hit.
- The run of a hit (KV-SW-2), and the cap of admission (KV-SW-7, KV-CHUNK-5).

The rules' demands on arguments are assumed; each statement's assumptions are shown to be possible.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import z3

from kvfast import configuration
from kvfast._core import shape as fast
from kvfast._core.allocator import Allocator
from kvref.coordinator import Coordinator
from kvref.groups.base import Group
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.full_attention import RSWAGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from proofs._z3 import Ledger, Statement, Term, cdiv, larger
from proofs.code._groups import (
    BLOCK,
    CAPPED,
    DRAFTED,
    LONGEST,
    REACH,
    STATES,
    STEP,
    cap,
    group_of,
    run_length,
    shape_of,
    sizes,
    skipped,
    unread,
)
from proofs.code._paths import Way, merged, term_of
from proofs.code._planted import TWINS, Planted, check_planted

ASSUMES = ("arguments are as the rules allow",)
GUARANTEES = ("both skip the same blocks, and count the same caps and runs",)

COMPUTED, PROMPT = z3.Ints("computed prompt")
KINDS = ("full", *CAPPED, *STATES)


# The code.


def removed_by_kvref(way: Way, kind: str) -> object:
    """Return the end of the removed blocks; 0 for none."""
    group, removed = group_of(way, kind), [(0, 0)]
    tokens: list[Any] = [way.number(COMPUTED), way.number(PROMPT)]

    def remove(request: str, first: Any, end: Any) -> None:
        removed.append((first, end))

    group.remove_blocks = remove
    Coordinator((group,)).remove_skipped_blocks("r", *tokens)
    return from_prompt_on(way, kind, *removed[-1])


def removed_by_kvfast(way: Way, kind: str) -> object:
    """Do the same in kvfast, for the last of two groups and the third row."""
    made: Any = object.__new__(Allocator)
    made.shape, removed = shape_of(way, kind, 2), [(0, 0)]

    def remove(g: int, at: int, kept: Any, end: Any) -> None:
        removed.append((kept, end) if at == 4 + g else (-1, -1))

    made.remove_before = remove
    made.remove_skipped(-1, way.number(COMPUTED), way.number(PROMPT))
    assert removed == [(0, 0)], "a request without a row holds nothing"
    made.remove_skipped(2, way.number(COMPUTED), way.number(PROMPT))
    return from_prompt_on(way, kind, *removed[-1])


def from_prompt_on(way: Way, kind: str, first: Any, end: Any) -> object:
    """Return the end if the first block is right or nothing is removed, else -1."""
    right = cdiv(PROMPT, BLOCK) if kind == "rswa" else z3.IntVal(0)
    return way.number(z3.If(z3.Or(term_of(first) == right, term_of(end) == 0), term_of(end), -1))


def cap_of_kvfast(way: Way, kind: str) -> object:
    """Return the cap as a configuration has it."""
    shape = shape_of(way, kind)
    config: Any = SimpleNamespace(
        max_model_len_tokens=way.number(LONGEST), max_num_batched_tokens=way.number(STEP)
    )
    reach = shape.reach[0] + shape.extra[0]
    return configuration._cap_blocks(config, shape.kind[0], shape.block_size[0], reach)


def unread_by_kvref(way: Way, kind: str) -> object:
    """Return the blocks that may be null in a hit of this length."""
    group = group_of(way, kind)
    return group.num_unread_tokens(way.number(COMPUTED)) // group.block_size


@dataclass(frozen=True)
class Equality:
    """A quantity that both twins compute for some kinds, and the rule."""

    name: str
    kinds: tuple[str, ...]
    rule: Callable[[str], Term]
    kvref: Callable[[Way, str], object]
    kvfast: Callable[[Way, str], object]


def removed(kind: str) -> Term:
    """Return the blocks before all read or kept tokens; drafts may be rejected (KV-MAMBA-5)."""
    if kind == "rswa":  # KV-RSWA-1
        return larger(PROMPT, COMPUTED - REACH) / BLOCK
    return skipped(kind, larger(COMPUTED - DRAFTED, 0) if kind in STATES else COMPUTED) / BLOCK


def run_of(drop: bool) -> Equality:
    return Equality(
        f"the run{' with a drop' * drop}",
        ("sliding",),
        lambda kind: run_length(drop=drop),
        lambda way, kind: group_of(way, kind).run_length_blocks(drop),
        lambda way, kind: shape_of(way, kind).run_length(0, drop),
    )


EQUALITIES = (
    Equality("what is removed", (*KINDS, "rswa"), removed, removed_by_kvref, removed_by_kvfast),
    Equality(
        "what may be null",
        KINDS,
        lambda kind: unread(kind, COMPUTED) / BLOCK,
        unread_by_kvref,
        lambda way, kind: shape_of(way, kind).unread(0, way.number(COMPUTED)),
    ),
    Equality(
        "the cap",
        CAPPED,
        cap,
        lambda way, kind: group_of(way, kind).max_admission_blocks(),
        cap_of_kvfast,
    ),
    run_of(drop=False),
    run_of(drop=True),
)


def equalities(*twins: str) -> Iterator[Statement]:
    """Yield the claims that these twins match the rules."""
    known = (*sizes(), COMPUTED >= 0, PROMPT >= 0)
    for each in EQUALITIES:
        for kind in each.kinds:
            for twin in twins:
                code = each.kvref if twin == "kvref" else each.kvfast
                answer = merged(partial(_called, code, kind))
                yield Statement(f"{twin}, {kind}: {each.name}", known, answer == each.rule(kind))


def _called(code: Callable[[Way, str], object], kind: str, way: Way) -> object:
    return code(way, kind)


PLANTED = tuple((equalities, each) for each in (
    Planted("KV-SW-1",
            (SlidingWindowGroup, "num_skipped_tokens", "self.window + 1 -", "self.window + 2 -"),
            (fast, "first_visible", "computed - reach + 1", "computed - reach + 2")),
    Planted("KV-SW-9",
            (SlidingWindowGroup, "num_skipped_tokens", " - self.extra", " - self.extra + 1"),
            (fast.Shape, "skipped", "self.extra[group], computed",
             "self.extra[group] - 1, computed")),
    Planted("KV-SW-9",
            (SlidingWindowGroup, "num_unread_tokens", "self.window + 1", "self.window"),
            (fast.Shape, "unread", "computed)", "computed - 1)")),
    Planted("KV-CHUNK-1",
            (ChunkedLocalGroup, "num_skipped_tokens", "return num", "return 1 + num"),
            (fast, "first_visible", "computed % reach", "computed % reach + 1")),
    Planted("KV-MAMBA-1",
            (MambaGroup, "num_skipped_tokens", "num_computed_tokens - 1", "num_computed_tokens"),
            (fast, "first_visible", "max(computed - 1, 0)", "max(computed, 0)")),
    Planted("KV-MAMBA-5",
            (MambaGroup, "remove_skipped_blocks", "self.num_speculative_blocks)",
             "self.num_speculative_blocks + 1)"),
            (Allocator, "remove_skipped", "self.shape.drafted[g])", "self.shape.drafted[g] + 1)")),
    Planted("KV-RSWA-1",
            (RSWAGroup, "remove_gap", "- self.window", "- self.window + 1"),
            (fast.Shape, "gap_end", "- self.reach[group]", "- self.reach[group] + 1")),
    Planted("KV-GRP-2",
            (Group, "remove_skipped_blocks", "// self.block_size", "// self.block_size + 1"),
            (fast.Shape, "skipped", "tokens // self.block_size[group] if",
             "self.cdiv(tokens, self.block_size[group]) if")),
    Planted("KV-SW-2",
            (SlidingWindowGroup, "run_length_blocks", "self.window - 1", "self.window"),
            (fast.Shape, "run_length", "self.reach[group] - 1", "self.reach[group]")),
    Planted("KV-SW-2", (fast.Shape, "cdiv", " + (1 if a % b else 0)", "")),
    Planted("KV-SW-7",
            (SlidingWindowGroup, "max_admission_blocks", "self.window - 1", "self.window"),
            (configuration, "_cap_blocks", "reach - 1", "reach")),
    Planted("KV-CHUNK-5",
            (ChunkedLocalGroup, "max_admission_blocks", "self.chunk +", "self.chunk - 1 +"),
            (configuration, "_cap_blocks", "min(reach + batched", "min(reach - 1 + batched")),
))  # fmt: skip


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("windows")
    ledger.prove_and_refute(equalities(*TWINS))
    check_planted(ledger, PLANTED)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
