"""Random models, memories and settings to plan for.

Nothing here asks the planner under test for a size: pages are worked out again from the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from hypothesis import strategies as st

from kvspec.errors import ConfigError
from kvspec.planning import AUTO_FIT, Layers, Plan, Planner, PlanningConfig
from kvspec.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

BYTES = {"float16": 2, "float32": 4}


def page_of(spec: LayerSpec) -> int:
    """Return the bytes of a page (KV-PLAN-1), for the specs drawn here."""
    if isinstance(spec, MambaSpec):
        real = sum(
            prod(shape) * BYTES[dtype]
            for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
        return spec.page_size_padded or real
    assert isinstance(spec, AttentionSpec)
    vectors = 1 if isinstance(spec, MLAAttentionSpec) else 2
    real = vectors * spec.block_size * spec.num_kv_heads * spec.head_size * BYTES[spec.dtype]
    return spec.page_size_padded or real


@dataclass(frozen=True)
class Case:
    workers: tuple[Layers, ...]
    config: PlanningConfig
    memory: tuple[int, ...]

    def plan(self, planner: Planner) -> Plan | None:
        """Return the plan, or None if it is refused."""
        try:
            return planner.plan(self.workers, self.config, self.memory)
        except ConfigError:
            return None

    @property
    def layers(self) -> dict[str, LayerSpec]:
        return {name: spec for layers in self.workers for name, spec in layers}


KINDS = ("full", "full", "sliding", "sliding", "chunked", "sink", "mla")


@st.composite
def attention(draw: st.DrawFn, kinds: Sequence[str]) -> LayerSpec:
    block = draw(st.sampled_from((2, 4, 8)))
    head = draw(st.sampled_from((8, 8, 8, 16)))
    window = draw(st.sampled_from((1, 3, 6, 8, 16)))
    kind = draw(st.sampled_from(kinds))
    if kind == "sliding":
        return SlidingWindowSpec(block, 1, head, "float16", sliding_window=window)
    if kind == "chunked":
        chunk = draw(st.sampled_from((8, 16)))
        return ChunkedLocalAttentionSpec(block, 1, head, "float16", attention_chunk_size=chunk)
    if kind == "sink":
        return SinkFullAttentionSpec(block, 1, head, "float16", sink_len=block)
    if kind == "mla":
        return MLAAttentionSpec(block, 1, head, "float16")
    return FullAttentionSpec(block, 1, head, "float16")


@st.composite
def models(draw: st.DrawFn, kinds: Sequence[str], states: bool) -> tuple[list[LayerSpec], bool]:
    """Draw the specs of a model's layers (a few kinds, repeated), perhaps with an encoder."""
    specs = draw(st.lists(attention(kinds), min_size=1, max_size=3))
    encoder = not states and draw(st.integers(0, 9)) == 0
    if encoder:
        specs.append(CrossAttentionSpec(4, 1, 8, "float16"))
    elif states or draw(st.integers(0, 3)) == 0:
        block = draw(st.sampled_from((2, 8, 64)))
        speculative = draw(st.integers(0, 2))
        specs.append(
            MambaSpec(
                block,
                ((2, 2),),
                ("float32",),
                page_size_padded=max(page_of(spec) for spec in specs),
                num_speculative_blocks=speculative,
            )
        )
    pattern = draw(st.lists(st.sampled_from(specs), min_size=1, max_size=8))
    return pattern, encoder


@st.composite
def cases(draw: st.DrawFn, *, kinds: Sequence[str] = KINDS, states: bool = False) -> Case:
    """Draw a model on one to three workers; with `states`, Mamba is among its layers."""
    pattern, encoder = draw(models(kinds, states))
    mode = draw(st.sampled_from(("none", "all", "align")))
    layers = []
    for index, spec in enumerate(pattern):
        if isinstance(spec, MambaSpec):
            spec = replace(spec, mamba_cache_mode=mode)
        layers.append((f"layer{index}", spec))
    cuts = sorted(draw(st.lists(st.integers(0, len(layers)), max_size=2)))
    edges = [0, *cuts, len(layers)]
    workers = tuple(tuple(layers[first:last]) for first, last in pairwise(edges))
    override = draw(st.none() | st.none() | st.integers(1, 120))
    plenty = draw(st.booleans())  # half of all draws would be refused otherwise
    config = PlanningConfig(
        max_model_len_tokens=draw(st.integers(1, 90)),
        max_num_batched_tokens=draw(st.integers(1, 30)),
        original_max_model_len_tokens=draw(st.sampled_from((None, AUTO_FIT))),
        max_encoder_tokens=draw(st.integers(1, 20)) if encoder else 0,
        disable_hybrid=draw(st.integers(0, 5)) == 0,
        num_blocks_override=override,
        mamba_cache_mode=mode,
        block_size=4,
        dcp_world_size=draw(st.sampled_from((1, 1, 1, 1, 1, 2))),
        enable_caching=not encoder and draw(st.booleans()),
        packed_layout=draw(st.integers(0, 3)) == 0,
    )
    memory = tuple(
        draw(st.integers(20_000 if plenty else 1, 100_000 if plenty else 20_000)) for _ in workers
    )
    return Case(workers, config, memory)
