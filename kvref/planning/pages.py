"""Values that follow from a spec: page bytes, blocks of a request (KV-PLAN-1, KV-PLAN-8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, cast

from kvspec.errors import ConfigError
from kvspec.planning import PlanningConfig, SpecProperties
from kvspec.specs import (
    DTYPE_BYTES,
    AttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

PLAIN_MODES = ("NONE", "FP8_PER_TENSOR")
SCALED_MODES = ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD")  # one float32 per token and head
NVFP4 = "NVFP4"  # half a byte per element, and one byte per 16 elements for their scale
QUANT_MODES = (*PLAIN_MODES, *SCALED_MODES, NVFP4)

# One token of the latent layout that DeepSeek's kernels read, whatever the spec's head size:
# 512 bytes of latent, 4 scales of 4 bytes, 64 rotary elements of 2 bytes.
FP8_DS_MLA = "fp8_ds_mla"
FP8_DS_MLA_TOKEN_BYTES = 656
# Version 4 of it: 448 bytes of latent, 8 bytes of scales, 64 rotary elements of 2 bytes.
DEEPSEEK_V4 = "deepseek_v4"
FP8_DS_MLA_V4_TOKEN_BYTES = 584


S = TypeVar("S", bound=LayerSpec)


def cdiv(dividend: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-dividend // divisor)


def spec_properties(spec: LayerSpec, config: PlanningConfig) -> SpecProperties:
    """Compute what `spec` implies under `config` (KV-PLAN-1)."""
    spec = normalized(spec)
    capped = spec.window_tokens or spec.chunk_tokens
    return SpecProperties(
        page_size_bytes=page_size_bytes(spec),
        real_page_size_bytes=(
            real_page_size_bytes(spec) if isinstance(spec, AttentionSpec) else None
        ),
        storage_block_size=storage_block_size(spec),
        max_memory_usage_bytes=max_memory_usage_bytes(spec, config),
        max_admission_blocks_per_request=max_blocks(spec, config) if capped else None,
        kind=spec.kind,
        sliding_window_tokens=spec.window_tokens or None,
        normalized_spec=spec,
    )


def normalized(spec: S) -> S:
    """Return the spec with the padding that its alignment requires (KV-PLAN-1).

    An alignment of 576 bytes pads a page of 9,344 bytes to 9,792, whatever padding was given. A
    padding that is already larger by whole alignments is kept: unifying pages made it.
    """
    if not isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec) or spec.alignment is None:
        return spec
    aligned = cdiv(real_page_size_bytes(spec), spec.alignment) * spec.alignment
    given = spec.page_size_padded
    if given is not None and given > aligned and given % spec.alignment == 0:
        return spec
    return cast(S, replace(spec, page_size_padded=aligned))


def page_size_bytes(spec: LayerSpec) -> int:
    """Return the bytes of one block of one layer, padding included (KV-PLAN-1)."""
    if spec.layers:
        return sum(page_size_bytes(layer) for _, layer in spec.layers)
    if not isinstance(spec, AttentionSpec | MambaSpec):
        raise ConfigError("spec", type(spec).__name__, "a spec of the contract")
    used = _used_page_size_bytes(spec)
    padded = normalized(spec).page_size_padded
    if padded is None and used == 0:
        raise ConfigError("page_size_bytes", 0, "at least 1: a layer that stores nothing is none")
    if padded is None:
        return used
    if padded < used:
        raise ConfigError("page_size_padded", padded, f"at least {used} bytes")
    return padded


def _used_page_size_bytes(spec: AttentionSpec | MambaSpec) -> int:
    """Return the bytes of a page before padding: the content, and scales kept beside it."""
    used = real_page_size_bytes(spec)
    if isinstance(spec, AttentionSpec) and not spec.is_latent:
        if spec.kv_quant_mode not in QUANT_MODES:
            raise ConfigError("kv_quant_mode", spec.kv_quant_mode, f"one of {_listed(QUANT_MODES)}")
        if spec.kv_quant_mode in SCALED_MODES:
            used += 2 * spec.block_size * spec.num_kv_heads * DTYPE_BYTES["float32"]
    return used


def real_page_size_bytes(spec: AttentionSpec | MambaSpec) -> int:
    """Return the bytes of a block's keys and values (or latents, or states) (KV-PLAN-1)."""
    if isinstance(spec, MambaSpec):
        return sum(
            _product(shape) * DTYPE_BYTES[dtype]
            for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
    if isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec):
        return storage_block_size(spec) * _latent_token_bytes(spec)
    if isinstance(spec, TQFullAttentionSpec) and spec.tq_slot_size > 0:
        return spec.block_size * spec.num_kv_heads * spec.tq_slot_size
    values = spec.head_size
    if isinstance(spec, FullAttentionSpec | SlidingWindowSpec):
        values = spec.head_size_v or spec.head_size
    token = _vector_bytes(spec, spec.head_size) + _vector_bytes(spec, values)
    return spec.block_size * spec.num_kv_heads * token


def _latent_token_bytes(spec: MLAAttentionSpec | SlidingWindowMLASpec) -> int:
    """Return the bytes of one token's latent vector."""
    if spec.cache_dtype_str == FP8_DS_MLA:
        if spec.model_version == DEEPSEEK_V4:
            return FP8_DS_MLA_V4_TOKEN_BYTES
        return FP8_DS_MLA_TOKEN_BYTES
    return spec.num_kv_heads * spec.head_size * DTYPE_BYTES[spec.dtype]


def _vector_bytes(spec: AttentionSpec, num_elements: int) -> int:
    """Return the bytes of one key or value vector."""
    if spec.kv_quant_mode == NVFP4:
        return num_elements // 2 + num_elements // 16
    return num_elements * DTYPE_BYTES[spec.dtype]


def storage_block_size(spec: LayerSpec) -> int:
    """Return the slots of a page: fewer than its tokens if a slot holds several."""
    if isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec):
        if spec.block_size % spec.compress_ratio:
            raise ConfigError(
                "compress_ratio", spec.compress_ratio, f"a divisor of block_size {spec.block_size}"
            )
        return spec.block_size // spec.compress_ratio
    return spec.block_size


def max_blocks(spec: LayerSpec, config: PlanningConfig) -> int:
    """Return the most blocks that one request of full length holds (KV-PLAN-8)."""
    length = config.max_model_len_tokens
    is_later = isinstance(spec, RSWASpec | CircularBufferSpec) or spec.replays_window
    if is_later or spec.extra_retained_tokens > 0:
        raise ConfigError(
            "spec", spec, "of a type that planning knows: no R-SWA, ring, replay, extra tokens"
        )
    if spec.layers:
        return max(max_blocks(layer, config) for _, layer in spec.layers)
    if spec.is_full_attention:
        on_this_rank = cdiv(length, config.dcp_world_size * config.pcp_world_size)
        return cdiv(on_this_rank, spec.block_size)
    if spec.window_tokens:
        tokens = min(spec.window_tokens - 1 + config.max_num_batched_tokens, length)
        return cdiv(tokens, spec.block_size) + 1  # a window may start inside a block
    if spec.chunk_tokens:
        tokens = min(spec.chunk_tokens + config.max_num_batched_tokens, length)
        return cdiv(tokens, spec.block_size)
    if spec.is_state:
        if config.mamba_cache_mode == "all":
            return cdiv(length, spec.block_size) + spec.num_speculative_blocks
        return {"none": 1, "align": 2}[config.mamba_cache_mode] + spec.num_speculative_blocks
    if isinstance(spec, CrossAttentionSpec):
        return cdiv(config.max_encoder_tokens, spec.block_size)
    if isinstance(spec, EncoderOnlyAttentionSpec):
        return 0
    raise ConfigError("spec", type(spec).__name__, "a spec of the contract")


def max_memory_usage_bytes(spec: LayerSpec, config: PlanningConfig) -> int:
    """Return the bytes that one request of full length takes in a layer (KV-PLAN-8)."""
    return max_blocks(spec, config) * page_size_bytes(spec)


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
