"""Random models, memories and settings to plan for: those of the judge, with Hypothesis in front.

Nothing here asks the planner under test for a size: pages are worked out again from the rules.
"""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from kvcheck.rules.random_plans import Case, random_case
from kvspec.policy import Policy
from kvspec.specs import AttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec

__all__ = ["CASES", "Case", "page_of"]

CASES = st.randoms(use_true_random=True).map(lambda random: random_case(random, Policy()))

BYTES = {"float16": 2, "float32": 4}


def page_of(spec: LayerSpec) -> int:
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
