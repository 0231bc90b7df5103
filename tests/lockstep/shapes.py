"""One group of any numbers, as kvref and as kvfast have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from kvfast._core import kinds
from kvfast._core.plan import GroupPlan
from kvfast._core.shape import Shape
from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Group, GroupContext
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)

GROUPS: dict[str, type[Group]] = {
    "full": FullAttentionGroup,
    "sliding": SlidingWindowGroup,
    "chunked": ChunkedLocalGroup,
    "mamba": MambaGroup,
    "aligned": AlignedMambaGroup,
}


@dataclass(frozen=True)
class Numbers:
    """What the arithmetic of a group depends on."""

    kind: str
    block_size: int
    reach: int = 1
    drafted: int = 0
    drops: bool = False
    alignment: int = 1
    null_prefix_is_hit: bool = False


def spec_of(numbers: Numbers) -> LayerSpec:
    """Its spec."""
    size = numbers.block_size
    if numbers.kind == "sliding":
        return SlidingWindowSpec(size, 1, 1, "int8", sliding_window=numbers.reach)
    if numbers.kind == "chunked":
        return ChunkedLocalAttentionSpec(size, 1, 1, "int8", attention_chunk_size=numbers.reach)
    if numbers.kind == "full":
        return FullAttentionSpec(size, 1, 1, "int8")
    return MambaSpec(
        size,
        shapes=((1,),),
        dtypes=("int8",),
        mamba_cache_mode="align" if numbers.kind == "aligned" else "none",
        num_speculative_blocks=numbers.drafted,
    )


def reference_group(numbers: Numbers, pool: BlockPool | None = None, *, index: int = 0) -> Group:
    """kvref's group, in this pool or in one of one block."""
    events = EventLog(enabled=False, int_hashes=False)
    context = GroupContext(
        index=index,
        spec=spec_of(numbers),
        block_size_tokens=numbers.block_size,
        hash_block_size_tokens=numbers.block_size,
        alignment_tokens=numbers.alignment,
        drops_eagle_block=numbers.drops,
        max_model_len_tokens=1,
        max_num_batched_tokens=1,
        retention_interval_tokens=None,
        null_prefix_is_hit=numbers.null_prefix_is_hit,
    )
    return GROUPS[numbers.kind](context, pool or BlockPool(1, events=events), events)


def fast_shape(*groups: Numbers) -> Shape:
    """kvfast's arithmetic of groups of different specs; the alignment is that of the first."""
    plans = [
        GroupPlan(
            spec=cast(LayerSpec, None),
            kind=getattr(kinds, numbers.kind.upper()),
            block_size=numbers.block_size,
            hashes_per_block=1,
            reach_tokens=numbers.reach,
            num_drafted=numbers.drafted,
            drops_block=numbers.drops,
            is_zeroed=False,
            cap_blocks=-1,
            num_sink_blocks=0,
        )
        for numbers in groups
    ]
    return Shape(
        plans,
        [[number] for number in range(len(groups))],
        alignment=groups[0].alignment,
        retention=-1,
        null_prefix_is_hit=groups[0].null_prefix_is_hit,
    )
