"""Make the manager that the first line of an example describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.values import Name, Reader, parted
from kvcheck.rules.specs import KINDS, PLANNED, SMALL, layer_of
from kvspec.config import NOT_NAMED, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import LayerSpec


def spec_of(words: Sequence[Any], sizes: Mapping[str, Mapping[str, Any]]) -> tuple[LayerSpec, bool]:
    """Return the spec of `window 6 of 4 eagle`, and whether it is an eagle group.

    Without `of` blocks have 4 tokens, windows and chunks 8; in a plan 16 and 128.
    """
    plain, members = parted(words)
    if plain and isinstance(plain[0], Name) and plain[0].word in KINDS:
        word = plain[0].word
        member = KINDS[word][1]
        # `none` is a mode of states here.
        rest = [getattr(each, "word", "none" if each is None else each) for each in plain[1:]]
        if member and rest and rest[0] not in ("of", "eagle"):
            members = {member: rest.pop(0), **members}
        elif member in ("sliding_window", "attention_chunk_size"):
            members.setdefault(member, 128 if sizes is PLANNED else 8)
        if rest[:1] != ["of"]:
            rest = ["of", 16 if sizes is PLANNED else 4, *rest]
        if rest[2:] in ([], ["eagle"]):
            return layer_of(word, rest[1], sizes, **members), len(rest) == 3
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
