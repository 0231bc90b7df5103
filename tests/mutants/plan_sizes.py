"""Mutants of sizes: bytes of a page, blocks of a request (KV-PLAN-1, KV-PLAN-8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvref.planning import blocks, grouping, layout, memory, merging, pages, plan
from kvref.planning import unify as unifying
from kvref.planning.pages import cdiv
from kvspec.planning import PlanningConfig
from kvspec.specs import (
    DTYPE_BYTES,
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from tests.mutants.make import planning

Spec = AttentionSpec | MambaSpec

right_real_page = pages.real_page_size_bytes
right_used_page = pages._used_page_size_bytes
right_token = pages._latent_token_bytes
right_vector = pages._vector_bytes
right_storage = pages.storage_block_size
right_blocks = pages.max_blocks

right_merge = merging.merge
right_uniform = unifying.uniform_type
right_normalized = pages.normalized
right_with_page = unifying.with_page_size
right_unify = unifying.unify_hybrid
right_project = grouping.project
right_scheduler = plan.scheduler_config
right_sizes = blocks.block_sizes
right_layout = layout.config_from_groups
right_layers = plan.all_layers
right_concurrency = blocks.max_concurrency


def values_as_long_as_keys(spec: Spec) -> int:
    """KV-PLAN-1: values take as many bytes as keys, whatever head_size_v."""
    if getattr(spec, "head_size_v", None):
        changed: Any = {"head_size_v": None}
        spec = replace(spec, **changed)
    return right_real_page(spec)


def keys_only(spec: Spec) -> int:
    """KV-PLAN-1: a page holds the keys and no values."""
    page = right_real_page(spec)
    latent_or_state = isinstance(spec, MambaSpec | MLAAttentionSpec | SlidingWindowMLASpec)
    return page if latent_or_state else page // 2


def latents_twice(spec: Spec) -> int:
    """KV-PLAN-1: a latent counts twice, as keys and values do."""
    return right_real_page(spec) * (1 + isinstance(spec, MLAAttentionSpec))


def first_state_only(spec: Spec) -> int:
    """KV-PLAN-1: of several states of a layer only the first counts."""
    if isinstance(spec, MambaSpec):
        spec = replace(spec, shapes=spec.shapes[:1], dtypes=spec.dtypes[:1])
    return right_real_page(spec)


def states_of_one_type(spec: Spec) -> int:
    """KV-PLAN-1: all states of a layer count with the type of the first."""
    if isinstance(spec, MambaSpec):
        spec = replace(spec, dtypes=spec.dtypes[:1] * len(spec.dtypes))
    return right_real_page(spec)


def slots_without_turbo(spec: Spec) -> int:
    """KV-PLAN-1: the slot size of quantised layers is ignored."""
    if getattr(spec, "tq_slot_size", 0):
        changed: Any = {"tq_slot_size": 0}
        spec = replace(spec, **changed)
    return right_real_page(spec)


def no_scales(spec: Spec) -> int:
    """KV-PLAN-1: scales per token and head take no bytes."""
    return right_real_page(spec)


def scales_once(spec: Spec) -> int:
    """KV-PLAN-1: keys and values share their scales."""
    real = right_real_page(spec)
    return real + (right_used_page(spec) - real) // 2


def four_bits_without_scales(spec: AttentionSpec, num_elements: int) -> int:
    """KV-PLAN-1: four-bit elements have no scales."""
    if spec.kv_quant_mode == pages.NVFP4:
        return num_elements // 2
    return right_vector(spec, num_elements)


def one_packed_latent(spec: MLAAttentionSpec | SlidingWindowMLASpec) -> int:
    """KV-PLAN-1: packed latents of every version have the bytes of the first."""
    if spec.cache_dtype_str == pages.FP8_DS_MLA:
        return pages.FP8_DS_MLA_TOKEN_BYTES
    return right_token(spec)


def packed_latents_by_head(spec: MLAAttentionSpec | SlidingWindowMLASpec) -> int:
    """KV-PLAN-1: packed latents have the bytes of their head size."""
    return spec.num_kv_heads * spec.head_size * DTYPE_BYTES[spec.dtype]


def nothing_is_compressed(spec: LayerSpec) -> int:
    """KV-PLAN-1: a page has a slot for each of its tokens."""
    right_storage(spec)
    return spec.block_size


def alignment_is_ignored(spec: Any) -> Any:
    """KV-PLAN-1: an alignment pads nothing."""
    return spec


def aligned_by_one_more(spec: Any) -> Any:
    """KV-PLAN-1: a page that fills its alignment exactly is padded by one more."""
    made = right_normalized(spec)
    if made == spec or not spec.alignment or made.page_size_padded != right_real_page(spec):
        return made
    return replace(made, page_size_padded=made.page_size_padded + spec.alignment)


def full_needs_one_more(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: full attention holds a block for the token after the longest sequence."""
    return right_blocks(spec, config) + isinstance(spec, FullAttentionSpec)


def parallel_ranks_hold_all(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: context parallelism does not share the tokens out."""
    return right_blocks(spec, replace(config, dcp_world_size=1, pcp_world_size=1))


def only_decode_ranks_share(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: prefill context parallelism does not share the tokens out."""
    return right_blocks(spec, replace(config, pcp_world_size=1))


def window_and_itself(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: a window holds its W tokens beside those of the step."""
    if not isinstance(spec, SlidingWindowSpec):
        return right_blocks(spec, config)
    tokens = min(spec.sliding_window + config.max_num_batched_tokens, config.max_model_len_tokens)
    return cdiv(tokens, spec.block_size) + 1


def window_longer_than_all(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: a window is not bounded by the longest sequence."""
    if not isinstance(spec, SlidingWindowSpec):
        return right_blocks(spec, config)
    return cdiv(spec.sliding_window - 1 + config.max_num_batched_tokens, spec.block_size) + 1


def chunk_and_one_more(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: a chunk holds a block more, as windows do."""
    return right_blocks(spec, config) + isinstance(spec, ChunkedLocalAttentionSpec)


def one_state_in_every_mode(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: mode align holds one state, as mode none."""
    align = config.mamba_cache_mode == "align" and isinstance(spec, MambaSpec)
    return right_blocks(spec, config) - align


def states_without_drafts(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: drafted states take no blocks."""
    if isinstance(spec, MambaSpec):
        spec = replace(spec, num_speculative_blocks=0)
    return right_blocks(spec, config)


def encoder_as_long_as_the_text(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: cross attention holds max_model_len tokens."""
    if isinstance(spec, CrossAttentionSpec):
        return cdiv(config.max_model_len_tokens, spec.block_size)
    return right_blocks(spec, config)


def encoder_only_is_kept(spec: LayerSpec, config: PlanningConfig) -> int:
    """KV-PLAN-8: encoder-only attention holds what full attention does."""
    if isinstance(spec, EncoderOnlyAttentionSpec):
        return cdiv(config.max_model_len_tokens, spec.block_size)
    return right_blocks(spec, config)


PAGE = (pages, "real_page_size_bytes")
USED = (pages, "_used_page_size_bytes")
TOKEN = (pages, "_latent_token_bytes")
ALIGN = ((pages, "normalized"), (grouping, "normalized"), (unifying, "normalized"))
HELD = ((pages, "max_blocks"), (memory, "max_blocks"))

MUTANTS = (
    planning(values_as_long_as_keys, PAGE),
    planning(keys_only, PAGE),
    planning(latents_twice, PAGE),
    planning(first_state_only, PAGE),
    planning(states_of_one_type, PAGE),
    planning(slots_without_turbo, PAGE),
    planning(no_scales, USED),
    planning(scales_once, USED),
    planning(four_bits_without_scales, (pages, "_vector_bytes")),
    planning(one_packed_latent, TOKEN),
    planning(packed_latents_by_head, TOKEN),
    planning(nothing_is_compressed, (pages, "storage_block_size")),
    planning(alignment_is_ignored, *ALIGN),
    planning(aligned_by_one_more, *ALIGN),
    planning(full_needs_one_more, *HELD),
    planning(parallel_ranks_hold_all, *HELD),
    planning(only_decode_ranks_share, *HELD),
    planning(window_and_itself, *HELD),
    planning(window_longer_than_all, *HELD),
    planning(chunk_and_one_more, *HELD),
    planning(one_state_in_every_mode, *HELD),
    planning(states_without_drafts, *HELD),
    planning(encoder_as_long_as_the_text, *HELD),
    planning(encoder_only_is_kept, *HELD),
)
