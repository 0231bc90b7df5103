"""Make the manager that the first line of an example describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.values import Name, Reader, parted
from kvspec.config import NOT_NAMED, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    ReplayedWindowSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

V4: Mapping[str, Any] = {
    "cache_dtype_str": "fp8_ds_mla",
    "alignment": 576,
    "model_version": "deepseek_v4",
}

SMALL: Mapping[str, Mapping[str, Any]] = {
    "": {"num_kv_heads": 1, "head_size": 8, "dtype": "float16"}
}
"""Sizes of layers in a pool, where they don't matter."""
PLANNED: Mapping[str, Mapping[str, Any]] = {
    "": {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"},
    "latent": {"num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"},
    "latent_window": {"num_kv_heads": 1, "head_size": 96, "dtype": "bfloat16"},
    "hidden": {"num_kv_heads": 1, "head_size": 256, "dtype": "bfloat16"},
    "v4": {"num_kv_heads": 1, "head_size": 512, "dtype": "uint8", **V4},
    "v4_window": {"num_kv_heads": 1, "head_size": 512, "dtype": "uint8", **V4},
}
"""Sizes of layers of a plan: a page of full attention with blocks of 16 has 65,536 bytes."""


def _states(size: int, *, mode: str = "all", drafts: int = 0, **members: Any) -> MambaSpec:
    shapes = tuple(map(tuple, members.pop("shapes", ((2, 2),))))
    dtypes = tuple(members.pop("dtypes", ("float32",) * len(shapes)))
    given = {"mamba_cache_mode": mode, "num_speculative_blocks": drafts, **members}
    return MambaSpec(size, shapes, dtypes, **given)


@dataclass(frozen=True)
class Foreign(LayerSpec):
    """A layer from outside the contract."""


KINDS: Mapping[str, tuple[Callable[..., LayerSpec], str]] = {
    # word: the function from a block size to a spec, and the member given before `of`
    "full": (FullAttentionSpec, ""),
    "latent": (MLAAttentionSpec, ""),
    "v4": (MLAAttentionSpec, ""),
    "hidden": (HiddenStateCacheSpec, ""),
    "quantized": (TQFullAttentionSpec, "tq_slot_size"),
    "sink": (SinkFullAttentionSpec, "sink_len"),
    "window": (SlidingWindowSpec, "sliding_window"),
    "latent_window": (SlidingWindowMLASpec, "sliding_window"),
    "v4_window": (SlidingWindowMLASpec, "sliding_window"),
    "replayed": (ReplayedWindowSpec, "sliding_window"),
    "chunk": (ChunkedLocalAttentionSpec, "attention_chunk_size"),
    "rswa": (RSWASpec, "rswa_window"),
    "mamba": (_states, "mode"),
    "cross": (CrossAttentionSpec, ""),
    "ring": (CircularBufferSpec, ""),
    "encoder": (EncoderOnlyAttentionSpec, ""),
    "foreign": (Foreign, ""),
}
WITHOUT_SIZES = frozenset({"mamba", "foreign"})


def spec_of(words: Sequence[Any], sizes: Mapping[str, Mapping[str, Any]]) -> tuple[LayerSpec, bool]:
    """Return the spec of `window 6 of 4 eagle`, and whether it is an eagle group.

    Without `of` blocks have 4 tokens; in a plan 16, and windows and chunks 128.
    """
    plain, members = parted(words)
    if plain and isinstance(plain[0], Name) and plain[0].word in KINDS:
        word = plain[0].word
        make, member = KINDS[word]
        # `none` is a mode of states here.
        rest = [getattr(each, "word", "none" if each is None else each) for each in plain[1:]]
        if member and rest and rest[0] not in ("of", "eagle"):
            members = {member: rest.pop(0), **members}
        elif sizes is PLANNED and member in ("sliding_window", "attention_chunk_size"):
            members.setdefault(member, 128)
        if word not in WITHOUT_SIZES:
            members = {**sizes.get(word, sizes[""]), **members}
        if rest[:1] != ["of"]:
            rest = ["of", 16 if sizes is PLANNED else 4, *rest]
        if rest[2:] in ([], ["eagle"]):
            return make(rest[1], **members), len(rest) == 3
    raise NotationError(f"no group: {' '.join(map(str, words))}")


def items_of(bench: Bench, reader: Reader) -> tuple[list[list[Any]], dict[str, Any]]:
    """Read the parts of a first line between `;`: layers, and options by name.

    Raises LeftOut for a `usual` choice that the subject lacks.
    """
    items: list[list[Any]] = []
    options: dict[str, Any] = {}
    while reader.peek()[1] == ";":
        reader.take(";")
        words = reader.values()
        plain, named = parted(words)
        if not plain:
            options.update(named)
        elif plain[0] == Name("usual"):
            bench.need_usual(*(each.word for each in plain[1:]))
        else:
            items.append(words)
    return items, options


def settled(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as a configuration takes them: choices as a policy."""
    given = {n: v.word if isinstance(v, Name) else v for n, v in options.items()}
    chosen: dict[str, Any] = {name: given.pop(name) for name in list(given) if name in CHOICES}
    return {**given, "policy": replace(bench.policy, **chosen)} if chosen else given


@dataclass(frozen=True)
class Setting:
    """A manager to be made.

    `has_clock`: `at` sets it (`clock=0`). `hashes_matter`: not with `hash_function=any`.
    """

    config: ManagerConfig
    has_clock: bool = False
    check_invariants: bool = True
    hashes_matter: bool = True


def setting_of(bench: Bench, reader: Reader) -> Setting:
    """Read `10; window 6 of 4; use_eagle=true`.

    Raises LeftOut for a choice that the subject lacks.
    """
    num_blocks = ROOMY if reader.peek()[1] in (";", "", "->") else reader.value()
    items, options = items_of(bench, reader)
    made = [spec_of(words, SMALL) for words in items]
    eagle = [number for number, (_, is_eagle) in enumerate(made) if is_eagle]
    given = settled(bench, options)
    if given.get("retention_interval_tokens") == "unnamed":
        given["retention_interval_tokens"] = NOT_NAMED
    has_clock = given.pop("clock", None) is not None
    checks = given.pop("check_invariants", True)
    hashes_matter = given.get("hash_function") != "any"
    if not hashes_matter:
        del given["hash_function"]
    layers = [spec for spec, _ in made]
    config = bench.config(num_blocks, specs=layers, eagle_groups=eagle, **given)
    return Setting(config, has_clock, checks, hashes_matter)


ROOMY = 200
"""Blocks of a pool whose size does not matter: `pool; full of 4`."""

CHOICES = frozenset(member.name for member in fields(Policy))
