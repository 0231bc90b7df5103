"""Groups of latent layers with pages of several sizes (KV-PLAN-22).

Such a model keeps several latents per block of layers: a compressed prefix, the keys of an indexer,
a short window. All full attention becomes one group, whatever its page sizes; the windows of one
length and block size are dealt out to groups that lie beside it, slot by slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from kvref.planning.pages import DEEPSEEK_V4, cdiv, page_size_bytes
from kvspec.config import KVCacheGroup
from kvspec.planning import Layers
from kvspec.specs import LayerSpec, MLAAttentionSpec, SlidingWindowMLASpec, UniformTypeKVCacheSpecs


def lie_side_by_side(layers: Layers) -> bool:
    """Return whether these are full and windowed latents of the version that mixes page sizes."""
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
    """Make one group of full attention, and windowed groups beside it (KV-PLAN-22, KV-PLAN-25)."""
    full = tuple(pair for pair in layers if isinstance(pair[1], MLAAttentionSpec))
    kinds: dict[tuple[int, int], list[tuple[str, LayerSpec]]] = {}
    for name, spec in layers:
        if isinstance(spec, SlidingWindowMLASpec):
            kinds.setdefault((spec.block_size, spec.sliding_window), []).append((name, spec))
    pages = Counter(page_size_bytes(spec) for _, spec in full)
    size = least_padding([num_tuples(full), *map(num_tuples, kinds.values())])
    groups = [_group(full)]
    for windows in kinds.values():
        padded = [(name, _padded_to_one_of(spec, sorted(pages))) for name, spec in windows]
        groups += [_group(dealt) for dealt in _dealt(padded, size)]
    last = layers[-1][0]  # a drafting head is last
    return tuple(
        replace(group, is_eagle_group=use_eagle and last in group.layer_names) for group in groups
    )


def num_tuples(layers: Iterable[tuple[str, LayerSpec]]) -> int:
    """Return the number of layers of the most frequent page size (KV-PLAN-25)."""
    return max(Counter(page_size_bytes(spec) for _, spec in layers).values())


def least_padding(counts: Sequence[int]) -> int:
    """Return the size, from the first count on, that needs least padding; the largest of equals."""

    def padding(size: int) -> int:
        return sum(-number % size for number in counts)

    return min(range(counts[0], max(counts) + 1), key=lambda size: (padding(size), -size))


def _dealt(windows: Sequence[tuple[str, LayerSpec]], size: int) -> Iterator[Layers]:
    """Distribute a kind's tuples, one layer of each page size, over groups of at most `size`."""
    classes: dict[int, list[tuple[str, LayerSpec]]] = {}
    for name, spec in windows:
        classes.setdefault(page_size_bytes(spec), []).append((name, spec))
    tuples = list(zip_longest(*classes.values()))
    num_groups = cdiv(len(tuples), size)
    for index in range(num_groups):
        mine = chain.from_iterable(tuples[index::num_groups])
        yield tuple(layer for layer in mine if layer is not None)


def _group(layers: Layers) -> KVCacheGroup:
    spec = UniformTypeKVCacheSpecs(layers[0][1].block_size, layers)
    return KVCacheGroup(tuple(name for name, _ in layers), spec)


def _padded_to_one_of(spec: LayerSpec, pages: Sequence[int]) -> LayerSpec:
    """Pad the spec to the smallest of these page sizes that holds it, to share its tensors."""
    own = page_size_bytes(spec)
    for page in pages:
        if page > own and isinstance(spec, SlidingWindowMLASpec):
            return replace(spec, page_size_padded=page)
        if page == own:
            return spec
    return spec


def profile_bytes_per_block(groups: Sequence[KVCacheGroup]) -> int:
    """Return the bytes that the profile `vllm-0.24` assumes for a block of such groups.

    These are the page sizes of full attention, times the most layers of one size in any group; an
    empty group counts with the layers that other workers have.
    """
    counted = [
        Counter(page_size_bytes(spec) for _, spec in group.spec.layers)
        for group in groups
        if group.spec.layers
    ]
    return max(max(pages.values()) for pages in counted) * sum(counted[0])
