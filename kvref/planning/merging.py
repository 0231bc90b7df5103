"""One spec for all layers of a group (KV-PLAN-2, KV-PLAN-26)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.planning.pages import page_size_bytes
from kvspec.errors import ConfigError
from kvspec.planning import Layers
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    spec_fields,
)

# Members in which layers of full attention may differ within a group.
FULL_ATTENTION_MAY_DIFFER = frozenset(
    {"head_size_v", "sliding_window", "attention_chunk_size", "non_causal"}
)
# Members in which latent layers must agree; all others are taken from the first.
LATENT_MUST_AGREE = (
    "num_kv_heads",
    "cache_dtype_str",
    "compress_ratio",
    "model_version",
    "indexes_kv_by_block_stride",
)

# Members in which windows over latents must agree.
WINDOWED_MUST_AGREE = ("sliding_window", *LATENT_MUST_AGREE[1:])


def merge(specs: Sequence[LayerSpec]) -> LayerSpec:
    """Return the spec of a group with these layers; ConfigError if there is none (KV-PLAN-2)."""
    if not specs:
        raise ConfigError("specs", specs, "at least one spec")
    first = specs[0]
    for spec in specs:
        # Exact types: a spec that is also full attention may store or allocate differently.
        if type(spec) is not type(first):
            raise ConfigError("specs", type(spec).__name__, f"{type(first).__name__}, as the first")
    if isinstance(first, MLAAttentionSpec):
        _must_agree(specs, LATENT_MUST_AGREE)
        _must_fit(specs)
        return first
    if isinstance(first, SlidingWindowMLASpec):  # KV-PLAN-26
        _must_agree(specs, WINDOWED_MUST_AGREE)
        _must_fit(specs)
        return first
    if first.is_full_attention:
        names = [name for name in spec_fields(first) if name not in FULL_ATTENTION_MAY_DIFFER]
        _must_agree(specs, tuple(names))
        _must_fit(specs)
        return _merged_full([spec for spec in specs if isinstance(spec, FullAttentionSpec)])
    _must_agree(specs, tuple(spec_fields(first)))
    return first


def is_mergeable(layers: Layers) -> bool:
    """Return whether one group can hold all layers (KV-PLAN-2); without layers, True."""
    if not layers:
        return True
    try:
        merge([spec for _, spec in layers])
    except ConfigError:
        return False
    return True


def _must_agree(specs: Sequence[LayerSpec], names: tuple[str, ...]) -> None:
    first = spec_fields(specs[0])
    for spec in specs:
        found = spec_fields(spec)
        for name in names:
            if found[name] != first[name]:
                raise ConfigError(name, found[name], f"{first[name]!r}, as in the first spec")


def _must_fit(specs: Sequence[LayerSpec]) -> None:
    """Check that no spec needs a larger page than the first, which represents all."""
    for spec in specs:
        if spec.block_size != specs[0].block_size:
            raise ConfigError("block_size", spec.block_size, f"{specs[0].block_size}, as the first")
        if page_size_bytes(spec) > page_size_bytes(specs[0]):
            raise ConfigError(
                "page_size_bytes",
                page_size_bytes(spec),
                f"at most {page_size_bytes(specs[0])}, as the first spec stands for all",
            )


def _merged_full(specs: Sequence[FullAttentionSpec]) -> FullAttentionSpec:
    """Merge full-attention specs that agree in all that counts; combine windows and causality."""
    window = _only_one("sliding_window", [spec.sliding_window for spec in specs])
    chunk = _only_one("attention_chunk_size", [spec.attention_chunk_size for spec in specs])
    if window is not None and chunk is not None:
        raise ConfigError("attention_chunk_size", chunk, "None in a group with a sliding window")
    return replace(
        specs[0],
        sliding_window=window,
        attention_chunk_size=chunk,
        non_causal=any(spec.non_causal for spec in specs),
    )


def _only_one(name: str, values: Sequence[int | None]) -> int | None:
    """Return the one value among those given; ConfigError if they differ."""
    given = {value for value in values if value is not None}
    if len(given) > 1:
        raise ConfigError(name, sorted(given), "one value, or None, for all layers of a group")
    return given.pop() if given else None
