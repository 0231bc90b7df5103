"""Programs leave out what a subject lacks, or declares or refuses, and judge what it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report, Verdict
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import Mistake
from kvcheck.play.fit import needs, random_program
from kvcheck.play.steps import Admit, Arrive, Break, Evict, NewStep, Program, Release, Run
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from kvref.implementation import ReferenceImplementation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Capabilities, Feature, KVCacheManager
from kvspec.policy import Policy
from kvspec.request import RequestInput
from kvspec.requirements import LIMITS, VALUES
from kvspec.specs import FullAttentionSpec, MambaSpec, RSWASpec
from tests.device.mistakes import planted
from tests.judge.declared import Declared
from tests.programs import SCENARIOS
from tests.remote.servers import config, serve
from tests.stand_ins import minimal

REFERENCE = kvref.implementation()
ALL = REFERENCE.capabilities
BASE = replace(
    ALL, spec_types=frozenset({FullAttentionSpec}), features=frozenset({Feature.PREFIX_CACHING})
)


def checked(seconds: float = 0.0) -> Report:
    options = Options(Level.SAFETY, Budget(seconds, 20))
    return Suite(minimal(), None, options).run()


def test_a_small_manager_is_judged_at_safety() -> None:
    report = checked(seconds=3.0)
    assert report.violations == ()
    assert (report.interrupted, report.gave_up) == (False, False)
    assert report.directed > 8
    assert report.random > 20
    assert set(report.situations) >= {"hit", "shared block", "revived block", "refusal"}


def test_what_is_left_out_names_what_is_lacking() -> None:
    left_out = checked().left_out
    assert left_out["KV-POOL-11: a reset of an empty cache clears the statistics"] == ("reset",)
    assert "SlidingWindowSpec" in left_out["KV-CFG-6"]
    assert left_out["KV-HASH-10"] == ("cache_salt",)
    assert "KV-FULL-2" not in left_out


@pytest.mark.parametrize(
    "mistake", planted(Path(__file__).with_name("small.diff")), ids=lambda one: str(one.id)
)
def test_a_broken_small_manager_is_caught_from_outside(mistake: Mistake) -> None:
    with mistake.make():
        found = {violation.rule for violation in checked().violations}
    assert found
    assert found <= {*mistake.rules}


STEPS = (
    Arrive((1, 2), salt="s", lora="x", items=(("i", 0, 1),), skip_reading=True, reports_hits=True),
    NewStep(),
    Admit(external_tokens=1, load_later=True, lookahead_tokens=2, must_fit=True),
    Run(drafts=(4, 5), accepted=1),
    Evict(),
    Break(call=6),
    Release(later=True),
)


def test_a_random_program_keeps_what_is_left_of_its_steps() -> None:
    program = replace(SCENARIOS[0], steps=STEPS)
    cut = random_program(program, BASE, Policy(), hashes_matter=True, oracle=None)
    assert cut is not None
    assert cut.steps == (Arrive((1, 2)), Admit(encoder_tokens=0), Run(), Release())


@pytest.mark.parametrize("feature", [f for step in STEPS for f, _ in needs(step)])
def test_each_feature_is_needed_on_its_own(feature: Feature) -> None:
    can: Capabilities = replace(ALL, features=ALL.features - {feature})
    program = replace(SCENARIOS[0], steps=STEPS)
    cut = random_program(program, can, Policy(), hashes_matter=True, oracle=None)
    assert cut is not None
    needed = {need for step in cut.steps for need, _ in needs(step)}
    assert needed == {need for step in STEPS for need, _ in needs(step)} - {feature} - lost(feature)


def lost(feature: Feature) -> set[Feature]:
    """Features that are left out together, as they share a step or a member."""
    together: dict[Feature, set[Feature]] = {
        Feature.EXTERNAL_TOKENS: {Feature.DELAYED_CACHING},
        Feature.EVICTION_BY_ID: {Feature.SNAPSHOT},
    }
    return together.get(feature, set())


def test_a_subject_without_windows_gets_other_groups() -> None:
    wanted: Callable[[Program], bool] = lambda p: p.name == "three groups, several rounds"  # noqa: E731
    program = next(filter(wanted, SCENARIOS))
    cut = random_program(program, BASE, Policy(), hashes_matter=True, oracle=None)
    assert cut is not None
    assert [type(group.spec) for group in cut.config.kv_cache.groups] == [FullAttentionSpec]


def test_what_the_oracle_lacks_once_it_is_cut_is_drawn_anew() -> None:
    """States of another mode become aligned ones, inside whose blocks hits may end beside R-SWA."""
    mamba = MambaSpec(8, ((2,),), ("float32",), mamba_cache_mode="all")
    specs = (RSWASpec(2, 1, 8, "float16", rswa_window=3), mamba)
    groups = tuple(KVCacheGroup((f"layer.{n}",), spec) for n, spec in enumerate(specs))
    config = ManagerConfig(KVCacheConfig(20, groups), max_model_len_tokens=48)
    aligned = replace(ALL, values={**ALL.values, "mamba_cache_mode": frozenset({"align"})})
    asked = (Program(config, (NewStep(),)), aligned, Policy(hits_inside_blocks=True))
    assert random_program(*asked, hashes_matter=True, oracle=None) is not None
    assert random_program(*asked, hashes_matter=True, oracle=REFERENCE) is None


WHY = "states of Mamba layers in this build"


class Refusing(Declared):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        if isinstance(config, ManagerConfig) and any(
            group.spec.is_state for group in config.kv_cache.groups
        ):
            raise UnsupportedError(WHY, self.capabilities.name)
        return super().create(config, **options)


@pytest.mark.parametrize(
    ("level", "budget"),
    [
        (Level.SAFETY, Budget(0.5, 20)),
        (Level.IDENTITY, Budget(0.5, 20)),
    ],
)
def test_a_refusal_leaves_out_and_breaks_nothing(level: Level, budget: Budget) -> None:
    rules = ("KV-MAMBA-*", "KV-SW-*", "KV-COORD-*", "KV-RET-*")
    report = Suite(Refusing(ALL), kvref.implementation(), Options(level, budget, rules)).run()
    assert [(found.rule, found.detail) for found in report.violations] == []
    assert any(WHY in lacks for lacks in report.left_out.values())
    outcomes = rule_outcomes(report)
    assert not any(found.verdict == Verdict.BROKEN for found in outcomes.values())
    if level is not Level.SAFETY:
        assert outcomes["KV-MAMBA-4"].verdict == Verdict.NOT_APPLICABLE
        assert outcomes["KV-MAMBA-4"].reason == f"needs {WHY}"


def test_names_of_values_and_limits_are_those_of_the_protocol() -> None:
    with open("spec/protocol.md", encoding="utf-8") as file:
        text = file.read()
    section = text[text.index("### Values and limits") : text.index("## Handles")]
    assert all(f"`{name}`" in section for name in (*VALUES, *LIMITS))


class Plain(ReferenceImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        plain = replace(config, policy=replace(config.policy, extra_keys="plain"))
        return super().create(plain, **options)


class DeclaredPlain(Plain):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, extra_key_forms=frozenset({"plain"}))


def broken(subject: ReferenceImplementation, level: Level) -> set[str]:
    rules = ("KV-HASH-7", "KV-HASH-8", "KV-HASH-9", "KV-HASH-10", "KV-POL-10", "KV-EVT-8")
    options = Options(level, Budget(0.0, 0), rules)
    report = Suite(subject, kvref.implementation(), options).run()
    assert report.directed > 0
    return {violation.rule for violation in report.violations}


def test_who_has_only_plain_keys_is_judged_under_plain() -> None:
    assert broken(DeclaredPlain(), Level.IDENTITY) == set()
    assert broken(DeclaredPlain(), Level.SAFETY) == set()


def test_who_names_tags_and_hashes_none_is_found() -> None:
    assert broken(Plain(), Level.IDENTITY) >= {"KV-HASH-7", "KV-HASH-8", "KV-HASH-9", "KV-HASH-10"}
    assert broken(Plain(), Level.SAFETY) == {"KV-HASH-10"}


def test_an_old_server_is_sent_no_extra_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = find_implementation(serve("kvref"))
    assert isinstance(remote, RemoteImplementation)
    connection = remote.connection
    old = replace(connection.capabilities, extra_key_forms=frozenset({"plain"}))
    monkeypatch.setattr(connection, "capabilities", old)
    sent = []
    call = connection.call

    def noted(op: str, **how: object) -> object:
        sent.append(how.get("args"))
        return call(op, **how)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(connection, "call", noted)
    manager = remote.create(config())
    assert "extra_keys" not in sent[-1]["config"]["policy"]  # type: ignore[index]  # a message
    remote.make_request(manager, RequestInput("a", [1, 2, 3, 4]))
    with pytest.raises(UnsupportedError, match="extra keys tagged"):
        remote.make_request(manager, RequestInput("b", [1, 2, 3, 4], cache_salt="s"))
    plain = remote.create(config(policy=Policy(extra_keys="plain")))
    salted = remote.make_request(plain, RequestInput("b", [1, 2, 3, 4], cache_salt="x"))
    assert salted.block_hashes[0].hex().startswith("7cd63c0c509703c9")
    remote.close()
