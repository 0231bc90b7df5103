"""A model's layers, split over workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvspec.errors import ConfigError
from kvspec.files.objects import (
    Check,
    Where,
    anything,
    checked_members,
    integer,
    list_of,
    object_of,
    optional,
    shown,
    text,
)
from kvspec.planning import Layers, Planner, PlanningConfig
from kvspec.specs import (
    DTYPES,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)


@dataclass(frozen=True)
class Rank:
    """The inputs of a spec besides the layer: the split, the block and the element type.

    - `tensor_parallel`: ranks that share each layer's heads.
    - `block_size`: tokens of a block; `state_block_size` of a state's.
    - `mamba_cache_mode`, `num_speculative_blocks`: of states.
    """

    tensor_parallel: int
    block_size: int
    state_block_size: int
    mamba_cache_mode: str
    num_speculative_blocks: int


@dataclass(frozen=True, eq=False)
class LayerKind:
    """One kind of layer: its name and type in the file, its numbers, and its place there."""

    name: str
    type: str
    dtype: str
    members: Mapping[str, Any]
    where: Where

    @property
    def is_state(self) -> bool:
        """Whether it keeps a state instead of an entry per token."""
        return self.type in STATE_TYPES

    def spec(self, rank: Rank) -> LayerSpec:
        try:
            return _TYPES[self.type].build(self, rank)
        except ConfigError as error:
            at = self.where.member(error.field)
            raise at.error(f"{shown(error.value)}: must be {error.allowed}") from None


@dataclass(frozen=True)
class _Type:
    required: Mapping[str, Check[Any]]
    optional: Mapping[str, Check[Any]]
    build: Callable[[LayerKind, Rank], LayerSpec]


def decode_kind(name: str, dtype: str, value: object, where: Where) -> LayerKind:
    """Decode a kind from its object. `dtype` is the default of the kind's own."""
    if not isinstance(value, dict) or "type" not in value:
        known = ", ".join(_TYPES)
        raise where.member("type").error(f"missing; a kind is an object with a type: {known}")
    type_name = text(value["type"], where.member("type"))
    if type_name not in _TYPES:
        known = ", ".join(_TYPES)
        raise where.member("type").error(f"{shown(type_name)}: must be one of {known}")
    described = _TYPES[type_name]
    rest = {member: item for member, item in value.items() if member != "type"}
    found = checked_members(
        rest, where, described.required, {**described.optional, "dtype": element_type}
    )
    for member, number in found.items():
        if isinstance(number, int) and number < 1:
            raise where.member(member).error(f"{number}: must be an int of at least 1")
    own = found.pop("dtype", dtype)
    return LayerKind(name, type_name, own, found, where)


def element_type(value: object, where: Where) -> str:
    found = text(value, where)
    if found not in DTYPES:
        raise where.error(f"{shown(found)}: must be one of {', '.join(DTYPES)}")
    return found


def _heads(kind: LayerKind, rank: Rank) -> int:
    """Return the heads of one rank: divided, or copied if there are fewer than ranks."""
    heads: int = kind.members["num_kv_heads"]
    return _share(kind, rank, "num_kv_heads", heads, may_copy=True)


def _share(kind: LayerKind, rank: Rank, member: str, number: int, *, may_copy: bool) -> int:
    ranks = rank.tensor_parallel
    if number % ranks == 0:
        return number // ranks
    if may_copy and ranks % number == 0:
        return 1
    allowed = f"a multiple of the {ranks} ranks of tensor parallelism"
    allowed += ", or a divisor of them" if may_copy else ""
    raise ConfigError(member, number, allowed)


def _attention(spec_type: Callable[..., LayerSpec]) -> Callable[[LayerKind, Rank], LayerSpec]:
    """Return the builder of a type whose spec has the members of the file under their names."""

    def build(kind: LayerKind, rank: Rank) -> LayerSpec:
        own = {name: value for name, value in kind.members.items() if name not in _HEADS}
        heads, size = _heads(kind, rank), kind.members["head_size"]
        return spec_type(rank.block_size, heads, size, kind.dtype, **own)

    return build


def _latent(kind: LayerKind, rank: Rank) -> LayerSpec:
    """Build the spec of a latent per token, for all heads: every rank stores the whole of it."""
    return MLAAttentionSpec(
        rank.block_size,
        1,
        kind.members["head_size"],
        kind.dtype,
        cache_dtype_str=kind.members.get("cache_dtype_str"),
    )


def _mamba1(kind: LayerKind, rank: Rank) -> LayerSpec:
    """Build the spec of the last inputs of the convolution, and one state per channel."""
    channels = kind.members["intermediate_size"]
    channels = _share(kind, rank, "intermediate_size", channels, may_copy=False)
    convolution = (kind.members["conv_kernel"] - 1, channels)
    return _state(kind, rank, "MAMBA1", (convolution, (channels, kind.members["state_size"])))


def _mamba2(kind: LayerKind, rank: Rank) -> LayerSpec:
    """Build the spec of the last inputs of the convolution (channels, B and C of each group), and a
    state per head.
    """
    channels = kind.members["num_heads"] * kind.members["head_size"]
    heads = _share(kind, rank, "num_heads", kind.members["num_heads"], may_copy=False)
    groups = _share(kind, rank, "num_groups", kind.members["num_groups"], may_copy=True)
    inputs = channels // rank.tensor_parallel + 2 * groups * kind.members["state_size"]
    convolution = (kind.members["conv_kernel"] - 1, inputs)
    state = (heads, kind.members["head_size"], kind.members["state_size"])
    return _state(kind, rank, "MAMBA2", (convolution, state))


def _state(
    kind: LayerKind, rank: Rank, mamba_type: str, shapes: tuple[tuple[int, ...], ...]
) -> LayerSpec:
    return MambaSpec(
        rank.state_block_size,
        shapes,
        (kind.dtype, kind.members.get("state_dtype", kind.dtype)),
        mamba_type=mamba_type,
        mamba_cache_mode=rank.mamba_cache_mode,
        num_speculative_blocks=rank.num_speculative_blocks,
    )


_HEADS: Mapping[str, Check[Any]] = {"num_kv_heads": integer, "head_size": integer}
_VALUES: Mapping[str, Check[Any]] = {"head_size_v": integer}
_STATE: Mapping[str, Check[Any]] = {"state_dtype": element_type}

STATE_TYPES = ("mamba1", "mamba2")

_TYPES: Mapping[str, _Type] = {
    "full": _Type(_HEADS, _VALUES, _attention(FullAttentionSpec)),
    "mla": _Type({"head_size": integer}, {"cache_dtype_str": optional(text)}, _latent),
    "sliding_window": _Type(
        {**_HEADS, "sliding_window": integer}, _VALUES, _attention(SlidingWindowSpec)
    ),
    "chunked_local": _Type(
        {**_HEADS, "attention_chunk_size": integer}, {}, _attention(ChunkedLocalAttentionSpec)
    ),
    "sink": _Type({**_HEADS, "sink_len": integer}, _VALUES, _attention(SinkFullAttentionSpec)),
    "cross": _Type(_HEADS, {}, _attention(CrossAttentionSpec)),
    "mamba1": _Type(
        {"intermediate_size": integer, "state_size": integer, "conv_kernel": integer},
        _STATE,
        _mamba1,
    ),
    "mamba2": _Type(
        {
            "num_heads": integer,
            "head_size": integer,
            "num_groups": integer,
            "state_size": integer,
            "conv_kernel": integer,
        },
        _STATE,
        _mamba2,
    ),
}


MOST_LAYERS = 10_000

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
    found = checked_members(
        value,
        where,
        {
            "max_model_len": _positive,
            "dtype": element_type,
            "num_layers": _positive,
            "kinds": object_of(anything),
            "pattern": list_of(anything),
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
