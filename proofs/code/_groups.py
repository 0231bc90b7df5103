"""A group of kvref, and the same group in kvfast's `Shape`, whose sizes are unknown numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import z3

from kvfast._core import kinds
from kvfast._core.shape import Shape
from kvref.groups.base import Group
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.cross_attention import CrossAttentionGroup, EncoderOnlyGroup
from kvref.groups.full_attention import FullAttentionGroup, RSWAGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from proofs._z3 import Term, cdiv, larger, smaller
from proofs.code._paths import Way

GROUPS: Mapping[str, type[Group]] = MappingProxyType(
    {
        "full": FullAttentionGroup,
        "rswa": RSWAGroup,
        "sliding": SlidingWindowGroup,
        "chunked": ChunkedLocalGroup,
        "mamba": MambaGroup,
        "aligned": AlignedMambaGroup,
        "cross": CrossAttentionGroup,
        "encoder_only": EncoderOnlyGroup,
    }
)
"""By the name of their kind in kvfast."""
STATES = ("mamba", "aligned")
CAPPED = ("sliding", "chunked")

BLOCK, REACH, DRAFTED, EXTRA = z3.Ints("block_size reach drafted extra")
"""`reach`: of a window or chunk; `extra`: retained beside a window (KV-SW-9)."""
LONGEST, STEP = z3.Ints("longest step")


def sizes() -> tuple[Term, ...]:
    """Return the assumptions on the sizes of groups."""
    return (BLOCK >= 1, REACH >= 1, DRAFTED >= 0, EXTRA >= 0, LONGEST >= 1, STEP >= 1)


def group_of(way: Way, kind: str) -> Any:
    """Build a group of kvref without block lists."""
    group: Any = object.__new__(GROUPS[kind])
    group.block_size = way.number(BLOCK)
    group.window = group.chunk = way.number(REACH)
    group.num_speculative_blocks = way.number(DRAFTED)
    group.extra = way.number(EXTRA)
    group.context = SimpleNamespace(
        max_model_len_tokens=way.number(LONGEST),
        max_num_batched_tokens=way.number(STEP),
        drafts_hold_states=True,
        is_zeroed=False,
    )
    return group


def shape_of(way: Way, kind: str, num_groups: int = 1) -> Any:
    """Build a `Shape` of kvfast with equal groups."""
    shape: Any = object.__new__(Shape)
    shape.num_groups = num_groups
    shape.drafts_hold_states = True
    of_each = {
        "kind": getattr(kinds, kind.upper()),
        "has_tokens": getattr(kinds, kind.upper()) in kinds.HOLDS_TOKENS,
        "block_size": way.number(BLOCK),
        "reach": way.number(REACH),
        "extra": way.number(EXTRA) if kind == "sliding" else 0,
        "drafted": way.number(DRAFTED) if kind in STATES else 0,
        "is_zeroed": 0,
        "cap": way.number(z3.Int("cap")) if kind in CAPPED else -1,
    }
    for name, number in of_each.items():
        setattr(shape, name, [number] * num_groups)
    return shape


# What the rules say.


def unread(kind: str, computed: Term) -> Term:
    """Return the leading tokens that no later token reads (KV-SW-1, KV-CHUNK-1, KV-MAMBA-1)."""
    if kind == "sliding":
        return larger(computed - REACH + 1, z3.IntVal(0))
    if kind == "chunked":
        return computed / REACH * REACH
    return larger(computed - 1, z3.IntVal(0)) if kind in STATES else z3.IntVal(0)


def skipped(kind: str, computed: Term) -> Term:
    """Return the leading tokens that are not held either: a window may retain more (KV-SW-9)."""
    return larger(unread(kind, computed) - EXTRA, z3.IntVal(0)) if kind == "sliding" else unread(
        kind, computed
    )  # fmt: skip


def run_length(*, drop: bool) -> Term:
    """Return the fewest blocks that hold W - 1 tokens, plus one to drop (KV-SW-2)."""
    return cdiv(REACH - 1, BLOCK) + int(drop)


def cap(kind: str) -> Term:
    """Return the most blocks that admission counts (KV-SW-7, KV-CHUNK-5)."""
    if kind == "chunked":
        return cdiv(smaller(REACH + STEP, LONGEST), BLOCK)
    return cdiv(smaller(REACH - 1 + EXTRA + STEP, LONGEST), BLOCK) + 1
