"""Plan files: what to plan for, as JSON. `spec/planning.md` describes the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvcheck.tools.plans.model import (
    MOST_WORKER_LAYERS,
    Model,
    Split,
    decode_model,
    decode_split,
    split_over_workers,
)
from kvspec.codec import decode_layers, decode_policy
from kvspec.domains import INT64_MAX
from kvspec.errors import ConfigError, FormatError
from kvspec.files.jsonlines import read_document
from kvspec.files.objects import (
    Check,
    Where,
    anything,
    boolean,
    checked_members,
    integer,
    list_of,
    object_of,
    optional,
    real,
    shown,
    text,
)
from kvspec.planning import AUTO_FIT, Layers, Planner, PlanningConfig

FORMAT, VERSION = "kvspec-plan", 1
GIB = 2**30
MOST_BYTES = 2**24
AUTO = "auto"
MAX_NUM_BATCHED_TOKENS = 8_192

# Member of `engine` -> field of PlanningConfig and the check of its value.
ENGINE: Mapping[str, tuple[str, Check[Any]]] = {
    "max_num_batched_tokens": ("max_num_batched_tokens", integer),
    "block_size": ("block_size", integer),
    "hash_block_size": ("hash_block_size", optional(integer)),
    "max_encoder_tokens": ("max_encoder_tokens", integer),
    "decode_context_parallel_size": ("dcp_world_size", integer),
    "prefill_context_parallel_size": ("pcp_world_size", integer),
    "enable_caching": ("enable_caching", boolean),
    "disable_hybrid": ("disable_hybrid", boolean),
    "num_blocks_override": ("num_blocks_override", optional(integer)),
    "mamba_cache_mode": ("mamba_cache_mode", text),
    "has_connector": ("has_connector", boolean),
    "packed_layout": ("packed_layout", boolean),
    "use_eagle": ("use_eagle", optional(boolean)),
    "policy": ("policy", decode_policy),
}


@dataclass(frozen=True)
class PlanFile:
    """A plan file: either a model and its split, or the layers of each worker."""

    name: str
    where: Where
    config: PlanningConfig
    memory_bytes: tuple[int, ...]
    memory_member: str
    model: Model | None
    split: Split
    num_speculative_blocks: int
    explicit: tuple[Layers, ...]

    @property
    def num_workers(self) -> int:
        return self.split.num_workers if self.model is not None else len(self.explicit)

    def workers(self, planner: Planner) -> tuple[tuple[Layers, ...], PlanningConfig]:
        if self.model is None:
            return self.explicit, self.config
        return split_over_workers(
            self.model, self.split, planner, self.config, self.num_speculative_blocks
        )

    def memory(self) -> tuple[int, ...]:
        """Return the bytes of each worker: as listed, or the one number for all."""
        if len(self.memory_bytes) == 1:
            return self.memory_bytes * self.num_workers
        return self.memory_bytes

    def explain(self, error: ConfigError) -> FormatError:
        """Return the planner's error with the member of the file that it is about."""
        said = f"{shown(error.value)}: must be {error.allowed}"
        if error.field == "available_memory_bytes":
            return self.where.member(self.memory_member).error(said)
        at = self.where.member("engine").member("mamba_cache_mode")
        if error.field == "hash_block_size_tokens" and self.config.mamba_cache_mode == "none":
            return at.error("'none': must be 'all' or 'align' where enable_caching is true")
        for member, (field, _) in ENGINE.items():
            # A spec also has a block size: that of the settings is never refused.
            if field == error.field and field != "block_size":
                return self.where.member("engine").member(member).error(said)
        return self.where.member("workers" if self.model is None else "model").error(str(error))


def read_plan_file(path: Path, changes: Mapping[str, Any] | None = None) -> PlanFile:
    """Read the plan file at `path`; FormatError if it is malformed.

    `changes` replaces members: `memory_gib`, or members of `engine` and `parallel`, by their path
    (`engine.max_model_len`).
    """
    where = Where(str(path))
    document = read_document(path, most_bytes=MOST_BYTES)
    if not isinstance(document, dict):
        raise where.error("is no JSON object")
    for place, value in (changes or {}).items():
        _change(document, place, value, where)
    return decode_plan_file(document, where)


def decode_plan_file(document: object, where: Where) -> PlanFile:
    found = checked_members(
        document,
        where,
        {"format": text, "version": integer},
        {
            **dict.fromkeys(("name", "description"), text),
            **dict.fromkeys(("engine", "memory_bytes", "memory_gib"), anything),
            **dict.fromkeys(("model", "workers", "parallel"), anything),
            "source": object_of(text),
            "unconfirmed": list_of(text),
        },
    )
    if (found["format"], found["version"]) != (FORMAT, VERSION):
        said = f"{shown(found['format'])} version {found['version']}"
        raise where.member("format").error(f"{said}: must be {FORMAT!r} version {VERSION}")
    if ("model" in found) == ("workers" in found):
        raise where.error("must have either model or workers")
    model: Model | None = None
    explicit: tuple[Layers, ...] = ()
    split = Split(1, (1,))
    if "model" in found:
        model = decode_model(found["model"], where.member("model"))
        at = where.member("parallel")
        split = decode_split(found.get("parallel", {}), len(model.layers), at)
        number = split.tensor * sum(map(len, model.layers))
    else:
        if "parallel" in found:
            raise where.member("parallel").error("only with a model; workers are split already")
        explicit = tuple(list_of(decode_layers)(found["workers"], where.member("workers")))
        if not explicit:
            raise where.member("workers").error("empty; give the layers of at least one worker")
        number = sum(map(len, explicit))
    if number > MOST_WORKER_LAYERS:
        at = where.member("parallel" if model is not None else "workers")
        raise at.error(f"{number} layers on all workers: must be at most {MOST_WORKER_LAYERS}")
    config, speculative = _engine(found.get("engine", {}), model, where.member("engine"))
    number = split.num_workers if model is not None else len(explicit)
    memory = _memory(found, number, config, where)
    return PlanFile(
        found.get("name", Path(where.file).stem),
        where,
        config,
        memory,
        "memory_gib" if "memory_gib" in found else "memory_bytes",
        model,
        split,
        speculative,
        explicit,
    )


def _engine(value: object, model: Model | None, where: Where) -> tuple[PlanningConfig, int]:
    """Decode the settings, and the speculative blocks of states."""
    found = checked_members(
        value,
        where,
        {},
        {
            **{member: check for member, (_, check) in ENGINE.items()},
            "max_model_len": anything,
            "num_speculative_blocks": integer,
        },
    )
    asked = found.pop("max_model_len", None)
    speculative = found.pop("num_speculative_blocks", 0)
    if speculative < 0:
        raise where.member("num_speculative_blocks").error(f"{speculative}: must be at least 0")
    if model is None and not isinstance(asked, int):
        asked = shown(asked)
        raise where.member("max_model_len").error(f"{asked}: must be an int, without a model")
    if asked not in (None, AUTO):
        asked = integer(asked, where.member("max_model_len"))
    limit = model.max_model_len_tokens if model is not None else asked
    if isinstance(asked, int) and model is not None and asked > limit:
        raise where.member("max_model_len").error(f"{asked}: the model reads at most {limit}")
    if model is not None and found.get("mamba_cache_mode", "none") == "none":
        # Without retained states there are none to hit.
        has_states = any(kind.is_state for kinds in model.layers for kind in kinds)
        found.setdefault("enable_caching", not has_states)
    members: dict[str, Any] = {
        "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
        "max_encoder_tokens": model.max_encoder_tokens if model is not None else 0,
        **{ENGINE[member][0]: item for member, item in found.items()},
        "max_model_len_tokens": limit if asked in (None, AUTO) else asked,
        "original_max_model_len_tokens": AUTO_FIT if asked == AUTO else None,
    }
    try:
        return PlanningConfig(**members), speculative
    except ConfigError as error:
        by_field = {field: member for member, (field, _) in ENGINE.items()}
        member = by_field.get(error.field, error.field.removesuffix("_tokens"))
        raise where.member(member).error(f"{shown(error.value)}: must be {error.allowed}") from None


def _memory(
    found: Mapping[str, Any], number: int, config: PlanningConfig, where: Where
) -> tuple[int, ...]:
    """Read `memory_bytes` or `memory_gib`: one number for all workers, or one for each."""
    given = [member for member in ("memory_bytes", "memory_gib") if member in found]
    if not given and config.num_blocks_override is not None:
        return (1,)  # not read
    if len(given) != 1:
        raise where.error("must have either memory_bytes or memory_gib")
    (member,) = given
    at, value = where.member(member), found[member]
    items = value if isinstance(value, list) else [value]
    sizes = []
    for index, item in enumerate(items):
        place = at.item(index) if isinstance(value, list) else at
        size = real(item, place) * GIB if member == "memory_gib" else integer(item, place)
        if not 1 <= size <= INT64_MAX:
            raise place.error(f"{item}: must be above 0, and less than 2^63 bytes")
        sizes.append(int(size))
    if isinstance(value, list) and len(sizes) != number:
        raise at.error(f"{len(sizes)} numbers; must be one, or one for each of {number} workers")
    return tuple(sizes)


def _change(document: dict[str, Any], place: str, value: Any, where: Where) -> None:
    """Replace one member of the document, two levels deep at most."""
    if place == "memory_gib":
        document.pop("memory_bytes", None)
    outer, _, inner = place.partition(".")
    if not inner:
        document[outer] = value
        return
    if not isinstance(document.setdefault(outer, {}), dict):
        raise where.member(outer).error(f"{shown(document[outer])} is not an object")
    if outer == "parallel" and "stages" in document[outer]:
        raise where.member("parallel.stages").error("the file fixes the stages; change it there")
    document[outer][inner] = value


def shipped_folder() -> Path:
    return Path(str(files("kvcheck").joinpath("data", "models")))


def shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in shipped_folder().glob("*.json")))


def shipped_path(name: str) -> Path:
    """Return the file of a shipped name; it exists if the name is one of `shipped_names`."""
    return shipped_folder() / f"{name}.json"
