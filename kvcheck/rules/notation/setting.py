"""Make the manager that the first line of an example describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
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
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

SIZES: Mapping[str, Any] = MappingProxyType({"num_kv_heads": 1, "head_size": 8, "dtype": "float16"})


def _sized(cls: Callable[..., LayerSpec]) -> Callable[..., LayerSpec]:
    return lambda size, **members: cls(size, **{**SIZES, **members})


def _states(size: int, *, mode: str = "all", drafts: int = 0, **members: Any) -> MambaSpec:
    sizes = {"shapes": ((2, 2),), "dtypes": ("float32",), **members}
    return MambaSpec(size, mamba_cache_mode=mode, num_speculative_blocks=drafts, **sizes)


KINDS: Mapping[str, tuple[Callable[..., LayerSpec], str]] = MappingProxyType(
    {
        # word: what makes its spec of a block size, the member that the word before `of` is
        "full": (_sized(FullAttentionSpec), ""),
        "latent": (_sized(MLAAttentionSpec), ""),
        "hidden": (_sized(HiddenStateCacheSpec), ""),
        "quantized": (_sized(TQFullAttentionSpec), "tq_slot_size"),
        "sink": (_sized(SinkFullAttentionSpec), "sink_len"),
        "window": (_sized(SlidingWindowSpec), "sliding_window"),
        "latent_window": (_sized(SlidingWindowMLASpec), "sliding_window"),
        "chunk": (_sized(ChunkedLocalAttentionSpec), "attention_chunk_size"),
        "rswa": (_sized(RSWASpec), "rswa_window"),
        "mamba": (_states, "mode"),
        "cross": (_sized(CrossAttentionSpec), ""),
        "ring": (_sized(CircularBufferSpec), ""),
        "encoder": (_sized(EncoderOnlyAttentionSpec), ""),
    }
)


def spec_of(words: Sequence[Any]) -> tuple[LayerSpec, bool]:
    """Return the spec of `window 6 of 4 eagle`, and whether it is an eagle group."""
    plain, members = parted(words)
    if plain and isinstance(plain[0], Name) and plain[0].word in KINDS:
        make, member = KINDS[plain[0].word]
        # `none` is a mode of states here.
        rest = [getattr(each, "word", "none" if each is None else each) for each in plain[1:]]
        if member and rest and rest[0] != "of":
            members = {member: rest.pop(0), **members}
        if rest[:1] == ["of"] and rest[2:] in ([], ["eagle"]):
            return make(rest[1], **members), len(rest) == 3
    raise NotationError(f"no group: {' '.join(map(str, words))}")


def config_of(bench: Bench, reader: Reader) -> tuple[ManagerConfig, bool]:
    """Read `pool 10; window 6 of 4; use_eagle=true`, and whether `at` sets its clock (`clock=0`).

    Raises LeftOut for a choice that the subject has not.
    """
    reader.take("pool")
    num_blocks = ROOMY if reader.peek()[1] in (";", "", "->") else reader.value()
    layers: list[LayerSpec] = []
    eagle: list[int] = []
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
            spec, is_eagle = spec_of(words)
            eagle += [len(layers)] * is_eagle
            layers.append(spec)
    given: dict[str, Any] = {n: v.word if isinstance(v, Name) else v for n, v in options.items()}
    if given.get("retention_interval_tokens") == "unnamed":
        given["retention_interval_tokens"] = NOT_NAMED
    has_clock = given.pop("clock", None) is not None
    chosen: dict[str, Any] = {name: given.pop(name) for name in list(given) if name in CHOICES}
    if chosen:
        given["policy"] = replace(bench.policy, **chosen)
    return bench.config(num_blocks, specs=layers, eagle_groups=eagle, **given), has_clock


ROOMY = 200
"""Blocks of a pool whose size does not matter: `pool; full of 4`."""

CHOICES = frozenset(member.name for member in fields(Policy))
