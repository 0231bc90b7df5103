"""The groups of a model (KV-PLAN-5, KV-PLAN-6, KV-PLAN-11, KV-PLAN-21, KV-PLAN-24)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.planning.latent import group_side_by_side, lie_side_by_side
from kvref.planning.merging import is_mergeable, merge
from kvref.planning.pages import normalized, page_size_bytes
from kvref.planning.sizes import group_size, in_turn
from kvref.planning.unify import uniform_type, unify_hybrid, unify_page_size
from kvspec.config import KVCacheGroup
from kvspec.errors import ConfigError, PageSizeError
from kvspec.planning import Layers, PlanningConfig
from kvspec.specs import HiddenStateCacheSpec, LayerSpec, UniformTypeKVCacheSpecs


def group_layers(layers: Layers, config: PlanningConfig) -> tuple[KVCacheGroup, ...]:
    """Group these layers in the first way that applies (KV-PLAN-5)."""
    layers = tuple((name, normalized(spec)) for name, spec in layers)
    if config.disable_hybrid:
        layers = unify_hybrid(layers)
    groups = _grouped(layers, use_eagle=bool(config.use_eagle))
    if config.policy.chunk_must_align:
        _check_chunks(groups)
    return groups


def _grouped(layers: Layers, *, use_eagle: bool) -> tuple[KVCacheGroup, ...]:
    if not layers:
        return ()
    names = tuple(name for name, _ in layers)
    if is_mergeable(layers):
        return (KVCacheGroup(names, merge([spec for _, spec in layers])),)
    uniform = uniform_type(layers)
    if uniform is not None:
        return (KVCacheGroup(names, uniform),)
    if lie_side_by_side(layers):
        return group_side_by_side(layers, use_eagle=use_eagle)
    hidden = [isinstance(spec, HiddenStateCacheSpec) for _, spec in layers]
    if any(hidden) and not all(hidden):
        return with_hidden_states(layers)
    return split_by_spec(unify_page_size(layers))


def with_hidden_states(layers: Layers) -> tuple[KVCacheGroup, ...]:
    """Group the other layers, and hidden states in blocks of the same bytes (KV-PLAN-23).

    Hidden states are small per token and few; if they decided group size or page size, every
    other layer would be padded for them.
    """
    others = tuple(pair for pair in layers if not isinstance(pair[1], HiddenStateCacheSpec))
    groups = split_by_spec(unify_page_size(others))
    page = page_size_bytes(groups[0].spec)
    size = max(len(group.layer_names) for group in groups)
    hidden: dict[LayerSpec, list[str]] = {}
    for name, spec in layers:
        if isinstance(spec, HiddenStateCacheSpec):
            token = page_size_bytes(spec) // spec.block_size
            if token > page:
                raise PageSizeError(name, token, page, "not even one token of it fits")
            filling = replace(spec, block_size=page // token, page_size_padded=page)
            hidden.setdefault(filling, []).append(name)
    return groups + tuple(
        KVCacheGroup(names, spec)
        for spec, all_names in hidden.items()
        for names in in_turn(all_names, size)
    )


def split_by_spec(layers: Layers) -> tuple[KVCacheGroup, ...]:
    """Split into groups of at most `group_size` layers with equal specs (KV-PLAN-6)."""
    by_spec: dict[LayerSpec, list[str]] = {}
    for name, spec in layers:
        by_spec.setdefault(spec, []).append(name)
    size = group_size([len(names) for names in by_spec.values()])
    return tuple(
        KVCacheGroup(names, spec)
        for spec, all_names in by_spec.items()
        for names in in_turn(all_names, size)
    )


def padding_warnings(groups: Sequence[KVCacheGroup]) -> tuple[str, ...]:
    """Return a sentence for each spec whose layers do not fill its groups (KV-PLAN-24)."""
    if len(groups) < 2 or any(g.spec.layers for g in groups):
        return ()  # side by side, a slot has only the pages it needs
    size = max(len(group.layer_names) for group in groups)
    missing: dict[LayerSpec, int] = {}
    present: dict[LayerSpec, int] = {}
    for group in groups:
        missing[group.spec] = missing.get(group.spec, 0) + size - len(group.layer_names)
        present[group.spec] = present.get(group.spec, 0) + len(group.layer_names)
    return tuple(
        f"{missing[spec]} padding layers beside {present[spec]} of {spec.kind}:"
        f" at most {100 * missing[spec] / present[spec]:.2f} % of their memory is wasted"
        for spec in missing
        if missing[spec] and present[spec]
    )


def project(groups: Sequence[KVCacheGroup], layers: Layers) -> tuple[KVCacheGroup, ...]:
    """Return the groups with only one worker's layers (KV-PLAN-11).

    A group without layers on the worker stays, empty and unflagged: all workers must number the
    groups alike.
    """
    mine = {name for name, _ in layers}
    projected = []
    for group in groups:
        names = tuple(name for name in group.layer_names if name in mine)
        spec = group.spec
        if spec.layers and names:
            kept = tuple(pair for pair in spec.layers if pair[0] in mine)
            spec = UniformTypeKVCacheSpecs(spec.block_size, kept)
        projected.append(KVCacheGroup(names, spec, bool(names) and group.is_eagle_group))
    return tuple(projected)


def _check_chunks(groups: Sequence[KVCacheGroup]) -> None:
    """Check that chunks end at block boundaries, even in longer unified blocks (KV-PLAN-21)."""
    for group in groups:
        spec = group.spec
        specs = [spec]
        if spec.layers:
            specs = [layer for _, layer in spec.layers]
        for layer in specs:
            if layer.chunk_tokens % layer.block_size:
                raise ConfigError(
                    "attention_chunk_size",
                    layer.chunk_tokens,
                    f"a multiple of the block size {layer.block_size}",
                )
