"""A group of kvref, and the same group in kvfast's `Shape`, run on unknown numbers.

Sizes are the unknown ints named in SIZES. What code asks of a list of unknown length is its length,
so `len` is another one in the modules of kvref's groups while a need is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import z3

from kvfast._core import kinds
from kvfast._core.shape import Shape
from kvref.groups import base, cross_attention, mamba, mamba_align
from kvref.groups.base import Demand, Group
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.cross_attention import CrossAttentionGroup, EncoderOnlyGroup
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from proofs._z3 import Term, larger
from proofs.code._paths import Way, merged, term_of

GROUPS: dict[str, type[Group]] = {
    "full": FullAttentionGroup,
    "window": SlidingWindowGroup,
    "chunk": ChunkedLocalGroup,
    "state": MambaGroup,
    "aligned": AlignedMambaGroup,
    "cross": CrossAttentionGroup,
    "encoder_only": EncoderOnlyGroup,
}
KINDS: dict[str, kinds.Kind] = {
    "window": kinds.SLIDING,
    "chunk": kinds.CHUNKED,
    "state": kinds.MAMBA,
}

SIZES = ("block_size", "window", "chunk", "num_speculative_blocks")
LONGEST, STEP = "longest", "most"


def sizes() -> tuple[Term, ...]:
    """What the sizes of groups are."""
    block, window, chunk, extra = z3.Ints(" ".join(SIZES))
    return (block >= 1, window >= 1, chunk >= 1, extra >= 0)


def of_reference(name: str, call: Callable[[Any, Way], object], **given: Term) -> Term:
    """What a group of kvref answers; its sizes are unknown, or given."""

    def run(way: Way) -> object:
        group: Any = object.__new__(GROUPS[name])
        for size in SIZES:
            setattr(group, size, way.number(given.get(size, z3.Int(size))))
        group.extra = 0
        group.context = SimpleNamespace(
            max_model_len_tokens=way.number(z3.Int(LONGEST)),
            max_num_batched_tokens=way.number(z3.Int(STEP)),
        )
        return call(group, way)

    return merged(run)


def of_fast(name: str, call: Callable[[Any, Way], object]) -> Term:
    """What kvfast answers for such a group."""

    def run(way: Way) -> object:
        shape: Any = object.__new__(Shape)
        shape.kind = [KINDS[name]]
        shape.block_size = [way.number(z3.Int("block_size"))]
        shape.reach = [way.number(z3.Int(name if name in SIZES else "window"))]
        shape.extra = [0]
        return call(shape, way)

    return merged(run)


def skips(name: str, computed: Term, **given: Term) -> Term:
    """Tokens that kvref skips (KV-SW-1, KV-CHUNK-1, KV-MAMBA-1)."""
    return of_reference(
        name, lambda group, way: group.num_skipped_tokens(way.number(computed)), **given
    )


def run_length(drop: bool, **given: Term) -> Term:
    """Blocks of a run that fills a window (KV-SW-2)."""
    return of_reference("window", lambda group, way: group.run_length_blocks(drop), **given)


def cap(name: str, **given: Term) -> Term:
    """The most blocks that kvref counts for a request (KV-SW-7, KV-CHUNK-5)."""
    return of_reference(name, lambda group, way: group.max_admission_blocks(), **given)


@dataclass(frozen=True)
class Blocks:
    """A list of unknown length from place `start` on, of which nobody asks what is in it."""

    length: Term
    way: Way
    start: Term = 0

    def __getitem__(self, part: slice) -> Blocks:
        start = term_of(part.start)
        return Blocks(larger(self.length - start, 0), self.way, z3.IntVal(0) + start)


def length_of(values: Any) -> Any:
    """`len`, of such a list as well."""
    return values.way.number(values.length) if isinstance(values, Blocks) else len(values)


def none_free(first: Term) -> Term:
    """No hit waits in the free queue."""
    return z3.IntVal(0)


def need(
    name: str,
    *,
    slots: Term,
    main: Term | None = None,
    local: Term | int = 0,
    external: Term | int = 0,
    skip_at: Term | int = 0,
    encoder: Term | int = 0,
    hits: Term | int = 0,
    held: Term | int = 0,
    most: Term | None = None,
    has_entry: bool = False,
    has_taken: bool = False,
    revived: Callable[[Term], Term] = none_free,
    **given: Term,
) -> Term:
    """What kvref's group says an allocation takes.

    `revived`: how many hits from a place on are free. With `most`, that is the cap of admission.
    """

    def run(group: Any, way: Way) -> object:
        group.blocks_of = lambda request: Blocks(z3.IntVal(0) + held, way)
        group.has_entry = lambda request: has_entry
        group.num_revived = lambda found: way.number(revived(z3.IntVal(0) + found.start))
        group.is_hit_too_new = lambda found: False
        group.allocated = {"r"} if has_taken else set()
        if most is not None:
            group.max_admission_blocks = lambda: way.number(most)
        asked = (slots, slots if main is None else main, local, external, skip_at, encoder)
        numbers = [way.number(z3.IntVal(0) + each) for each in asked]
        demand = cast(Any, Demand)(*numbers, apply_admission_cap=most is not None)
        return group.num_blocks_needed("r", Blocks(z3.IntVal(0) + hits, way), demand)

    with ExitStack() as stack:
        for module in (base, cross_attention, mamba, mamba_align):
            stack.enter_context(patch.object(module, "len", length_of, create=True))
        return of_reference(name, run, **given)
