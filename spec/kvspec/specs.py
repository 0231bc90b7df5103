"""Layer specs: how one layer stores its KV (KV-CFG-1).

All specs are frozen and hashable; two groups *share a specification* exactly when their specs are
equal, including the type. The class names are the `type` strings of records.

This module only declares specs. An implementation's planner computes the bytes of a page and the
blocks that a request may need (`kvspec.interface.Planner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from kvspec.domains import Natural, Positive, check_members, int_at_least, one_of
from kvspec.errors import ConfigError
from kvspec.traits import Traits

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
"""Bytes of one element of each type."""

DTYPES: tuple[str, ...] = tuple(DTYPE_BYTES)
"""Element types a spec may name."""

MAMBA_CACHE_MODES: tuple[str, ...] = ("none", "all", "align")


@dataclass(frozen=True)
class LayerSpec(Traits):
    """The base of all specs, with the number of token slots of a block."""

    block_size: Positive

    def __post_init__(self) -> None:
        check_members(self)

    @property
    def layers(self) -> tuple[tuple[str, LayerSpec], ...]:
        """The layers by name where they differ (KV-PLAN-3)."""
        return ()


@dataclass(frozen=True)
class AttentionSpec(LayerSpec):
    """A layer with keys and values (or one latent) per token.

    `head_size` counts elements, `page_size_padded` bytes. `kv_quant_mode` and
    `indexes_kv_by_block_stride` matter to planning only.
    """

    num_kv_heads: Positive
    head_size: Positive
    dtype: Annotated[str, DTYPES]
    kv_quant_mode: str = "NONE"
    page_size_padded: Positive | None = None
    indexes_kv_by_block_stride: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "head_size_v", 0) is None:  # of the types that have it
            object.__setattr__(self, "head_size_v", self.head_size)


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """Attention over the whole prefix.

    `head_size_v` defaults to `head_size`. `sliding_window` and `attention_chunk_size` are only
    remembered (a windowed layer managed as full attention); the manager ignores them, and so
    `non_causal`: the queries of one step see each other, as where a drafter predicts several tokens
    at once. With caching, keys and values of a token may not depend on later tokens all the same;
    layers where they do are `EncoderOnlyAttentionSpec` (KV-CROSS-4).
    """

    head_size_v: Positive | None = None
    sliding_window: Positive | None = None
    attention_chunk_size: Positive | None = None
    non_causal: bool = False

    kind: ClassVar[str] = "full_attention"
    is_full_attention: ClassVar[bool] = True
    keeps_all_blocks: ClassVar[bool] = True


@dataclass(frozen=True)
class TQFullAttentionSpec(FullAttentionSpec):
    """Full attention with a compressed slot of `tq_slot_size` bytes per head and token (0: off)."""

    tq_slot_size: Natural = 0


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    """Full attention over one latent vector per token."""

    cache_dtype_str: str | None = None
    alignment: Positive | None = None
    compress_ratio: Positive = 1
    model_version: str | None = None

    kind: ClassVar[str] = "mla_attention"
    is_latent: ClassVar[bool] = True


@dataclass(frozen=True)
class HiddenStateCacheSpec(MLAAttentionSpec):
    """Hidden states kept like an MLA latent."""


@dataclass(frozen=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """Full attention with `sink_len` tokens of always-present sink blocks."""

    sink_len: Natural = 0

    kind: ClassVar[str] = "sink_full_attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sink_len % self.block_size:
            raise ConfigError(
                "sink_len", self.sink_len, f"a multiple of block_size {self.block_size}"
            )

    @property
    def num_sink_blocks(self) -> int:
        return self.sink_len // self.block_size


@dataclass(frozen=True)
class RSWASpec(FullAttentionSpec):
    """Full attention over the prompt, and over the last `rswa_window` tokens after it."""

    rswa_window: Positive = 0

    keeps_all_blocks: ClassVar[bool] = False


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """Attention over the last `sliding_window` tokens, including the current one.

    The blocks of `extra_retained_tokens` before the window are kept, although they are not attended
    to.
    """

    sliding_window: Positive = 0
    head_size_v: Positive | None = None
    extra_retained_tokens: Natural = 0

    kind: ClassVar[str] = "sliding_window"
    retains_sparsely: ClassVar[bool] = True

    @property
    def window_tokens(self) -> int:
        return self.sliding_window


@dataclass(frozen=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    """A sliding window over one latent vector per token."""

    cache_dtype_str: str | None = None
    alignment: Positive | None = None
    compress_ratio: Positive = 1
    model_version: str | None = None

    kind: ClassVar[str] = "sliding_window_mla"
    is_latent: ClassVar[bool] = True


@dataclass(frozen=True)
class ReplayedWindowSpec(SlidingWindowMLASpec):
    """A sliding window that is not cached: a request computes it again behind a hit (KV-SW-10)."""

    prefix_cacheable: ClassVar[bool] = False
    replays_window: ClassVar[bool] = True


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """Attention within fixed chunks of `attention_chunk_size` tokens."""

    attention_chunk_size: Positive = 0

    kind: ClassVar[str] = "chunked_local_attention"

    @property
    def chunk_tokens(self) -> int:
        return self.attention_chunk_size


@dataclass(frozen=True)
class MambaSpec(LayerSpec):
    """A linear-state layer: tensors of `shapes` and `dtypes` per block, whatever its tokens.

    `mamba_cache_mode`: `none` keeps one running state, `all` one state per block, `align` the
    states at block boundaries that a later request may start from. `num_speculative_blocks` more
    blocks hold the states of drafted tokens. In mode align a step may leave one state more inside
    its chunk, in one of `num_prefill_checkpoint_blocks`, a multiple of
    `prefill_checkpoint_alignment` after the chunk's start (KV-INSIDE-5).
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: Positive | None = None
    mamba_type: str = "MAMBA2"
    mamba_cache_mode: Annotated[str, MAMBA_CACHE_MODES] = "none"
    num_speculative_blocks: Natural = 0
    num_prefill_checkpoint_blocks: int = 0
    prefill_checkpoint_alignment: Positive | None = None

    kind: ClassVar[str] = "mamba"
    is_state: ClassVar[bool] = True
    retains_sparsely: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for shape in self.shapes:
            for size in shape:
                int_at_least("shapes", size, 0)
        for dtype in self.dtypes:
            one_of("dtypes", dtype, DTYPES)
        if len(self.shapes) != len(self.dtypes):
            raise ConfigError("dtypes", self.dtypes, f"one per shape ({len(self.shapes)})")
        if self.num_prefill_checkpoint_blocks not in (0, 1):
            blocks = self.num_prefill_checkpoint_blocks
            raise ConfigError("num_prefill_checkpoint_blocks", blocks, "0 or 1")

    @property
    def is_aligned(self) -> bool:
        return self.mamba_cache_mode == "align"

    @property
    def checkpoint_step_tokens(self) -> int:
        has_block = self.is_aligned and self.num_prefill_checkpoint_blocks > 0
        return (self.prefill_checkpoint_alignment or 0) if has_block else 0


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """Attention over the encoder's tokens; allocated once, never cached."""

    kind: ClassVar[str] = "cross_attention"
    reads_encoder: ClassVar[bool] = True
    keeps_all_blocks: ClassVar[bool] = True


@dataclass(frozen=True)
class CircularBufferSpec(AttentionSpec):
    """A ring of `block_size` slots: one block per request, written over and over, never cached."""

    kind: ClassVar[str] = "circular_buffer"
    is_ring: ClassVar[bool] = True
    keeps_all_blocks: ClassVar[bool] = True
    prefix_cacheable: ClassVar[bool] = False


@dataclass(frozen=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Attention that keeps nothing: needs no block at all."""

    kind: ClassVar[str] = "encoder_only_attention"
    needs_blocks: ClassVar[bool] = False


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(LayerSpec):
    """Several layers of one type with different sizes in one group (planning only).

    `kv_cache_specs` pairs each layer name with its spec; all have this block size.
    """

    kv_cache_specs: tuple[tuple[str, LayerSpec], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kv_cache_specs:
            raise ConfigError("kv_cache_specs", self.kv_cache_specs, "at least one layer")

    @property
    def layers(self) -> tuple[tuple[str, LayerSpec], ...]:
        return self.kv_cache_specs


SPEC_TYPES: tuple[type[LayerSpec], ...] = (
    FullAttentionSpec,
    TQFullAttentionSpec,
    MLAAttentionSpec,
    HiddenStateCacheSpec,
    SinkFullAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
    SlidingWindowMLASpec,
    ReplayedWindowSpec,
    ChunkedLocalAttentionSpec,
    MambaSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    CircularBufferSpec,
    UniformTypeKVCacheSpecs,
)
"""Every spec the contract knows; `cls.__name__` is its `type` in records."""


def spec_fields(spec: LayerSpec) -> dict[str, Any]:
    """Return the spec's members by name, in declaration order; later ones only if they matter."""
    members = {field.name: getattr(spec, field.name) for field in fields(spec)}
    if spec.is_state and not spec.has_checkpoints:
        return {name: value for name, value in members.items() if "checkpoint" not in name}
    if not members.get("extra_retained_tokens", 1):
        del members["extra_retained_tokens"]
    return members
