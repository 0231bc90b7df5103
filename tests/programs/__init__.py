"""Programs to test the drivers, recorders and shrinkers with: a story each, of few calls.

They are in `stories.txt` and `inside.txt`. The first line of a story is that of an example
(spec/examples.md), with its own sizes; steps follow by their names. `for S in 0 1` before it
repeats the story for each of these values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import kvref
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.steps import Admit, Arrive, Break, Evict, Program, Release, Run, Step
from kvcheck.rules.bench import Bench
from kvcheck.rules.notation.setting import items_of, spec_of
from kvcheck.rules.notation.values import Name, Reader, parted
from kvcheck.rules.specs import SMALL
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec, LayerSpec
from tests.cases import Case, cases, frozen

STEPS: Mapping[str, type[Step]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", step.__name__).lower(): step for step in Step.__subclasses__()
}


def configure(
    num_blocks: int, *specs: LayerSpec, eagle: tuple[int, ...] = (), **options: Any
) -> ManagerConfig:
    """Configure a pool of `num_blocks` blocks for groups of these specs, all outputs on."""
    groups = tuple(
        KVCacheGroup((f"layer.{number}",), spec, is_eagle_group=number in eagle)
        for number, spec in enumerate(specs)
    )
    usual: dict[str, Any] = {
        "max_model_len_tokens": 64,
        "enable_events": True,
        "log_stats": True,
        "hash_seed": "0",
    }
    return ManagerConfig(KVCacheConfig(num_blocks, groups), **{**usual, **options})


def full(block_size: int = 2) -> FullAttentionSpec:
    """Return a small full-attention layer."""
    return FullAttentionSpec(block_size, 1, 8, "float16")


def configured(line: str) -> ManagerConfig:
    """Read `pool 8; full of 2; window 4 of 2 eagle; use_eagle=true`."""
    reader = Reader(line)
    reader.take("pool")
    num_blocks = reader.value()
    layers, options = items_of(Bench(kvref.implementation(), Policy()), reader)
    specs = [spec_of(words, SMALL) for words in layers]
    eagle = tuple(number for number, (_, is_eagle) in enumerate(specs) if is_eagle)
    return configure(num_blocks, *(spec for spec, _ in specs), eagle=eagle, **options)


def steps_of(*lines: str) -> Iterator[Step]:
    """Read `arrive 1..5 salt="s"; admit chunk_tokens=2; evict_each 1 3 group=1`."""
    reader = Reader("; ".join(lines))
    while reader.peek()[0]:
        words, named = parted(reader.values())
        verb, *given = words
        if reader.peek()[0]:
            reader.take(";")
        numbers = [n for each in given for n in (each if isinstance(each, list) else [each])]
        options = {name: frozen(value) for name, value in named.items()}
        if verb == Name("evict_each"):
            yield from (Evict(index=index, **options) for index in numbers)
        elif verb == Name("arrive"):
            yield Arrive(tuple(numbers), **options)
        else:
            yield STEPS[verb.word](**options)


def _stories(case: Case) -> Iterator[Program]:
    name, _, rules = case.name.partition("  ")
    if not case.given[0].startswith("for "):
        first, *lines = case.given
        yield Program(configured(first), tuple(steps_of(*lines)), name, tuple(rules.split()))
        return
    _, word, _, *values = case.given[0].split()
    for value in values:
        told = [re.sub(rf"\b{word}\b", value, line) for line in (case.name, *case.given[1:])]
        yield from _stories(Case(case.path, told[0], tuple(told[1:]), ()))


A = (1, 2, 3, 4, 5)
C = (7, 7, 7, 7, 7)
CFG = configure(8, full())

ILLEGAL: tuple[Program, ...] = tuple(
    Program(
        CFG,
        (
            *(Arrive(A), Break(call=number), Admit(), Break(call=number), Run(), Arrive(C)),
            *(Break(1, number), Release(later=one.operation == "free_blocks"), Break(call=number)),
        ),
        f"illegal: {one.name}",
        (one.rule, "KV-ERR-2"),
    )
    for number, one in enumerate(ILLEGAL_OPERATIONS)
    if one.feature is not Feature.HITS_PER_GROUP  # which takes several groups
)
TOLD: tuple[Program, ...] = tuple(
    story for case in cases(__file__, "stories.txt") for story in _stories(case)
)
SCENARIOS: tuple[Program, ...] = (*TOLD, *ILLEGAL)
"""All but the stories of hits that end inside a block."""

INSIDE_SCENARIOS: tuple[Program, ...] = tuple(
    story for case in cases(__file__, "inside.txt") for story in _stories(case)
)
"""For subjects that have the feature, judged at level safety, where they are chosen (KV-POL-24)."""
