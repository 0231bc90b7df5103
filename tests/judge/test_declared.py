"""Whoever declares less is judged by less: kvref conforms with every part of what it has.

kvref stands behind a declaration that it enforces (`tests.judge.declared`): what the suite
asks beyond it, and what it makes of a cut that no manager could serve, is a broken rule here.

    pytest --deep tests/judge/test_declared.py         # all of it, at budget fast
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import pytest

import kvref
from kvcheck.judge.applying import counts_of, rule_outcomes
from kvcheck.judge.options import BUDGETS, Budget, Options
from kvcheck.judge.outcome import Report, Verdict
from kvcheck.judge.suite import Suite
from kvcheck.play import fit
from kvcheck.play.random_programs import random_programs
from kvcheck.play.verdicts import Level
from kvcheck.rulebook import rule_sentences
from kvcheck.rules.directed import example_violation, find_example
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Capabilities, Feature
from kvspec.policy import Policy
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from tests.judge.declared import Declared
from tests.mistakes import mistaken

REFERENCE = kvref.implementation()
ALL = REFERENCE.capabilities
FAST = dict(BUDGETS)["fast"]
SHORT = replace(FAST, seconds=1.0)

KINDS: tuple[tuple[type[LayerSpec], ...], ...] = (
    (FullAttentionSpec,),
    (FullAttentionSpec, SlidingWindowSpec),
    (FullAttentionSpec, MambaSpec),
    (FullAttentionSpec, ChunkedLocalAttentionSpec),
    (FullAttentionSpec, CrossAttentionSpec),
    (FullAttentionSpec, EncoderOnlyAttentionSpec, SlidingWindowSpec),
    (FullAttentionSpec, SinkFullAttentionSpec),
    (FullAttentionSpec, SlidingWindowSpec, MambaSpec),
    (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec),
    (SlidingWindowSpec,),
    (MambaSpec,),
    (ChunkedLocalAttentionSpec,),
    (CrossAttentionSpec,),
)
"""The features of a manager for one kind of model."""

BASE = replace(
    ALL,
    spec_types=frozenset({FullAttentionSpec}),
    features=frozenset({Feature.PREFIX_CACHING}),
)


def having(**values: set[str]) -> Capabilities:
    return replace(ALL, values={name: frozenset(found) for name, found in values.items()})


def declarations() -> Iterator[tuple[str, Capabilities]]:
    yield "the base", BASE
    yield "no hash functions", replace(ALL, hash_functions=frozenset())
    yield "blocks of 4 and more", replace(ALL, min_block_size_tokens=4)
    yield "mamba in mode align", having(mamba_cache_mode={"align"})
    yield "decode context parallelism", having(context_parallel={"decode"})
    yield "blocks of one size", having(block_sizes={"equal"}, hash_block_size={"block"})
    yield "two groups at most", replace(ALL, limits={"groups": 2, "num_speculative_blocks": 0})
    yield "small", replace(ALL, limits={"num_blocks": 20, "block_size": 4, "max_model_len": 1000})
    for types in KINDS:
        name = " + ".join(cls.__name__.removesuffix("Spec") for cls in types)
        yield name, replace(ALL, spec_types=frozenset(types))
    for feature in Feature:
        yield f"without {feature}", replace(ALL, features=ALL.features - {feature})


DECLARATIONS: Mapping[str, Capabilities] = dict(declarations())
IN_EVERY_RUN = ("mamba in mode align", "the base", "without prefix_caching")
"""Those that the cuts change most."""


def checked(can: Capabilities, level: Level, budget: Budget) -> Report:
    return Suite(Declared(can), REFERENCE, Options(level, budget)).run()


def expect_no_violation(name: str, level: Level, budget: Budget) -> None:
    """The declaration conforms; level identity asks for a snapshot."""
    can = DECLARATIONS[name]
    if level is Level.IDENTITY and Feature.SNAPSHOT not in can.features:
        with pytest.raises(UnsupportedError, match="snapshot"):
            checked(can, level, budget)
        return
    report = checked(can, level, budget)
    assert [(found.rule, found.detail) for found in report.violations] == []
    assert report.directed + report.random > 0
    expect_counts_that_add_up(report, can)


def expect_counts_that_add_up(report: Report, can: Capabilities) -> None:
    """Each rule was exercised, or it stands there why not; none for lack of what is declared."""
    outcomes = rule_outcomes(report)
    assert list(outcomes) == list(rule_sentences())
    counts = counts_of(outcomes)
    assert sum(counts.values()) == len(outcomes)
    declared = {*can.features, *(cls.__name__ for cls in can.spec_types), *can.hash_functions}
    for rule, found in outcomes.items():
        if found.verdict == Verdict.UNBROKEN:
            assert rule in report.exercised
            continue
        assert found.reason
        if found.verdict == Verdict.NOT_APPLICABLE:
            needs = set(found.reason.removeprefix("needs ").split(", "))
            assert not needs & declared, (rule, found.reason)


@pytest.mark.parametrize("name", IN_EVERY_RUN)
def test_who_declares_less_conforms(name: str) -> None:
    expect_no_violation(name, Level.BEHAVIOUR, SHORT)


@pytest.mark.deep
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", DECLARATIONS)
def test_every_declaration_conforms_at_every_level(name: str, level: Level) -> None:
    expect_no_violation(name, level, FAST)


def served(config: ManagerConfig) -> bool:
    try:
        REFERENCE.create(config, check_invariants=False)
    except ConfigError:
        return False
    return True


TYPES = sorted(ALL.spec_types, key=lambda cls: cls.__name__)
PAIRS = [frozenset(pair) for pair in combinations(TYPES, 2)]


@pytest.mark.parametrize("types", PAIRS, ids=lambda types: "+".join(sorted(map(str, types))))
def test_what_is_left_of_a_configuration_is_served(types: frozenset[type[LayerSpec]]) -> None:
    can = replace(ALL, spec_types=types)
    for program in random_programs(0, 0, 4):
        cut = fit.random_program(program, can, Policy(), hashes_matter=True, oracle=None)
        assert cut is None or served(cut.config)


def test_what_the_oracle_refuses_is_drawn_anew() -> None:
    can = replace(ALL, min_block_size_tokens=8)
    refused = 0
    for program in random_programs(0, 0, 4):
        cut = fit.random_program(program, can, Policy(), hashes_matter=True, oracle=None)
        asked = fit.random_program(program, can, Policy(), hashes_matter=True, oracle=REFERENCE)
        refused += cut is not None and asked is None
        assert asked is None or served(asked.config)
        assert asked is None or asked == cut
    assert refused > 0


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("KV-FULL-1: a growing request keeps all its blocks", "FullForgetsTheBeginning"),
        ("KV-FULL-6: a full block can be hit once it is allocated", "CachedOneStepLater"),
        ("KV-MGR-6: a refusal without windows does nothing", "RefusalEvicts"),
        ("KV-MGR-6: a refusal without windows does nothing", "RefusalTakesABlock"),
    ],
)
def test_rules_of_the_base_are_checked_with_the_base_alone(name: str, mistake: str) -> None:
    example = find_example(name)
    assert example_violation(example, Declared(BASE), Policy(), level=Level.BEHAVIOUR) is None
    assert example_violation(example, mistaken(mistake), Policy()) is not None
