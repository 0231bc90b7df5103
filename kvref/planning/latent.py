"""Groups of latent layers whose pages come in several sizes (KV-PLAN-22).

Such a model keeps several latents per block of layers: a compressed prefix, the keys of an indexer,
a short window. All full attention becomes one group, whatever its page sizes; each kind of window
is cut into groups that lie beside it, slot by slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kvref.planning.pages import DEEPSEEK_V4, page_size_bytes
from kvref.planning.sizes import group_size, in_turn
from kvspec.config import KVCacheGroup
from kvspec.planning import Layers
from kvspec.specs import (
    LayerSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)


def lie_side_by_side(layers: Layers) -> bool:
    """Whether these are full and windowed latents of the version that mixes page sizes."""
    specs = [spec for _, spec in layers]
    return (
        any(isinstance(spec, MLAAttentionSpec) for spec in specs)
        and any(isinstance(spec, SlidingWindowMLASpec) for spec in specs)
        and all(_mixes_page_sizes(spec) for spec in specs)
    )


def _mixes_page_sizes(spec: LayerSpec) -> bool:
    if not isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec):
        return False
    return spec.model_version == DEEPSEEK_V4


def group_side_by_side(layers: Layers, *, use_eagle: bool) -> tuple[KVCacheGroup, ...]:
    """One group of full attention, and windowed groups beside it (KV-PLAN-22)."""
    full = tuple(pair for pair in layers if isinstance(pair[1], MLAAttentionSpec))
    windowed: dict[LayerSpec, list[str]] = {}
    for name, spec in layers:
        if not isinstance(spec, MLAAttentionSpec):
            windowed.setdefault(spec, []).append(name)
    pages = Counter(page_size_bytes(spec) for _, spec in full)
    size = group_size([max(pages.values()), *map(len, windowed.values())])
    groups = [_group(full)]
    for spec, names in windowed.items():
        padded = _padded_to_one_of(spec, sorted(pages))
        for mine in in_turn(names, size):
            groups.append(_group(tuple((name, padded) for name in mine)))
    last = layers[-1][0]  # a drafting head comes last
    return tuple(
        replace(group, is_eagle_group=use_eagle and last in group.layer_names) for group in groups
    )


def _group(layers: Layers) -> KVCacheGroup:
    spec = UniformTypeKVCacheSpecs(layers[0][1].block_size, layers)
    return KVCacheGroup(tuple(name for name, _ in layers), spec)


def _padded_to_one_of(spec: LayerSpec, pages: Sequence[int]) -> LayerSpec:
    """With the smallest of these page sizes that holds it, so that it can share their tensors."""
    own = page_size_bytes(spec)
    for page in pages:
        if page > own and isinstance(spec, SlidingWindowMLASpec):
            return replace(spec, page_size_padded=page)
        if page == own:
            return spec
    return spec


def profile_bytes_per_block(groups: Sequence[KVCacheGroup]) -> int:
    """What the profile `vllm-0.24` takes a block of such groups for.

    The page sizes of full attention, times the most layers of one size in any group; an empty group
    counts with the layers that other workers have.
    """
    counted = [
        Counter(page_size_bytes(spec) for _, spec in group.spec.kv_cache_specs)
        for group in groups
        if isinstance(group.spec, UniformTypeKVCacheSpecs)
    ]
    return max(max(pages.values()) for pages in counted) * sum(counted[0])
