"""A model's layers, split over workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvcheck.tools.plans.kinds import LayerKind, Rank, decode_kind, element_type
from kvspec._json import Where, checked_members, integer, list_of, object_of, shown, text
from kvspec.planning import Layers, Planner, PlanningConfig
from kvspec.specs import LayerSpec, MambaSpec

MOST_LAYERS = 10_000
"""Layers of a model."""

MOST_WORKER_LAYERS = 200_000
"""Layers of all workers together; each is planned."""


@dataclass(frozen=True)
class Model:
    """The layers of a model by kind.

    `layers`: the kinds of each layer, in order; a decoder layer with cross attention has two.
    """

    max_model_len_tokens: int
    max_encoder_tokens: int
    layers: tuple[tuple[LayerKind, ...], ...]


@dataclass(frozen=True)
class Split:
    """Ranks that share each layer, and the number of layers of each pipeline stage."""

    tensor: int
    stages: tuple[int, ...]

    @property
    def num_workers(self) -> int:
        """Number of workers: one per rank and stage, those of the first stage first."""
        return self.tensor * len(self.stages)


def decode_model(value: object, where: Where) -> Model:
    """Decode the `model` of a plan file."""
    found = checked_members(
        value,
        where,
        {
            "max_model_len": _positive,
            "dtype": element_type,
            "num_layers": _positive,
            "kinds": object_of(_anything),
            "pattern": list_of(_anything),
        },
        {"max_encoder_tokens": _positive},
    )
    kinds = {
        name: decode_kind(name, found["dtype"], kind, where.member("kinds").member(name))
        for name, kind in found["kinds"].items()
    }
    pattern = _pattern(found["pattern"], kinds, where.member("pattern"))
    number = found["num_layers"]
    if number > MOST_LAYERS:
        raise where.member("num_layers").error(f"{number}: must be at most {MOST_LAYERS}")
    if len(pattern) > number:
        raise where.member("pattern").error(f"{len(pattern)} entries for {number} layers")
    layers = tuple(pattern[index % len(pattern)] for index in range(number))
    encoder = found.get("max_encoder_tokens", 0)
    if not encoder and any(kind.type == "cross" for kinds_of in layers for kind in kinds_of):
        raise where.member("max_encoder_tokens").error("missing; cross attention reads them")
    return Model(found["max_model_len"], encoder, layers)


def _pattern(
    items: list[Any], kinds: Mapping[str, LayerKind], where: Where
) -> list[tuple[LayerKind, ...]]:
    if not items:
        raise where.error("empty; name the kind of at least one layer")
    pattern = []
    for index, item in enumerate(items):
        at = where.item(index)
        names = list_of(text)(item, at) if isinstance(item, list) else [text(item, at)]
        for name in names:
            if name not in kinds:
                raise at.error(f"{shown(name)}: must be one of the kinds {', '.join(kinds)}")
        if not names or len(set(names)) < len(names):
            raise at.error(f"{shown(names)}: must be kinds, each once")
        pattern.append(tuple(kinds[name] for name in names))
    return pattern


def decode_split(value: object, num_layers: int, where: Where) -> Split:
    """Decode the `parallel` of a plan file."""
    found = checked_members(
        value,
        where,
        {},
        {"tensor": _positive, "pipeline": _positive, "stages": list_of(_positive)},
    )
    return make_split(
        found.get("tensor", 1), found.get("pipeline"), found.get("stages"), num_layers, where
    )


def make_split(
    tensor: int, pipeline: int | None, stages: list[int] | None, num_layers: int, where: Where
) -> Split:
    """Split into stages as given, or as evenly as possible, the longer ones first."""
    if stages is not None:
        if pipeline not in (None, len(stages)):
            raise where.member("pipeline").error(f"{pipeline} for {len(stages)} stages")
        if sum(stages) != num_layers:
            raise where.member("stages").error(
                f"{sum(stages)} layers; must add up to num_layers {num_layers}"
            )
        return Split(tensor, tuple(stages))
    number = pipeline or 1
    if number > num_layers:
        raise where.member("pipeline").error(f"{number}: must be at most num_layers {num_layers}")
    short, longer = divmod(num_layers, number)
    return Split(tensor, tuple(short + (index < longer) for index in range(number)))


def split_over_workers(
    model: Model, split: Split, planner: Planner, config: PlanningConfig, speculative: int
) -> tuple[tuple[Layers, ...], PlanningConfig]:
    """Return each worker's layers, and the settings with the resulting block size.

    Beside states the blocks of attention are lengthened until a page can hold a state, and the
    states' pages are padded to them: every page then has one size.
    """
    used = dict.fromkeys(kind for kinds in model.layers for kind in kinds)
    states = [kind for kind in used if kind.is_state]
    others = [kind for kind in used if not kind.is_state]
    rank = Rank(
        split.tensor, config.block_size, config.block_size, config.mamba_cache_mode, speculative
    )

    def largest_page(kinds: list[LayerKind], rank: Rank) -> int:
        pages = [planner.spec_properties(kind.spec(rank), config) for kind in kinds]
        return max(page.page_size_bytes for page in pages)

    padded = None
    if states and others:
        factor = -(-largest_page(states, rank) // largest_page(others, rank))
        rank = replace(rank, block_size=rank.block_size * factor)
        padded = largest_page(others, rank)
    if states:
        running = config.mamba_cache_mode == "none"
        length = config.max_model_len_tokens if running else rank.block_size
        rank = replace(rank, state_block_size=length)
    block_size = rank.block_size if others else rank.state_block_size
    workers, start = [], 0
    for layers in split.stages:
        mine = tuple(
            (f"layers.{index}.{kind.name}", _spec(kind, rank, padded))
            for index in range(start, start + layers)
            for kind in model.layers[index]
        )
        workers += [mine] * split.tensor
        start += layers
    return tuple(workers), replace(config, block_size=block_size)


def _spec(kind: LayerKind, rank: Rank, state_page: int | None) -> LayerSpec:
    spec = kind.spec(rank)
    if isinstance(spec, MambaSpec) and state_page is not None:
        return replace(spec, page_size_padded=state_page)
    return spec


def _positive(value: object, where: Where) -> int:
    number = integer(value, where)
    if number < 1:
        raise where.error(f"{number}: must be an int of at least 1")
    return number


def _anything(value: object, where: Where) -> Any:
    return value
