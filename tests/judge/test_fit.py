"""Programs leave out features that a subject lacks, and judge those that it has."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

import kvref
from examples.own_manager.final import MyManager
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.suite import Suite
from kvcheck.play.fit import needs, random_program
from kvcheck.play.steps import Admit, Arrive, Break, Evict, NewStep, Program, Release, Run
from kvcheck.play.verdicts import Level
from kvspec.base import BaseRequest
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Capabilities, Feature
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec, MambaSpec, RSWASpec
from tests.judge.minimal import minimal
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()
ALL = REFERENCE.capabilities
BASE = replace(
    ALL, spec_types=frozenset({FullAttentionSpec}), features=frozenset({Feature.PREFIX_CACHING})
)


def checked(manager_class: type[MyManager] = MyManager, seconds: float = 0.0) -> Report:
    options = Options(Level.SAFETY, Budget(seconds, 20))
    return Suite(minimal(manager_class), None, options).run()


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


class OverwritesSharedBlocks(MyManager):
    """A new request gets blocks that somebody else uses."""

    def take(self) -> int:
        used = [block for blocks in self.tables.values() for block in blocks]
        return used[0] if len(used) > 2 else super().take()


class Leaks(MyManager):
    """The first block of a request never comes back."""

    def free(self, request: BaseRequest) -> None:
        self.tables.get(request.request_id, [])[:1] = []
        super().free(request)


class KeepsStaleIdentities(MyManager):
    """A block that is taken again is still found under its old content."""

    def take(self) -> int:
        return self.free_blocks.pop(0)


class HitsEverything(MyManager):
    def get_computed_blocks(self, request: BaseRequest) -> PrefixHit:
        longer = copy(request)
        longer.token_ids = [*request.token_ids, 0]
        return super().get_computed_blocks(longer)


class ChangesOnErrors(MyManager):
    """A refused call has released the request's blocks."""

    def allocate_slots(self, *given: Any, **options: Any) -> KVCacheBlocks | None:
        try:
            return super().allocate_slots(*given, **options)
        except ValueError:
            self.free_blocks.pop()
            raise


@pytest.mark.parametrize(
    ("broken", "rules"),
    [
        (OverwritesSharedBlocks, {"KV-POOL-3", "KV-POOL-15", "KV-POOL-17", "KV-HASH-1"}),
        (Leaks, {"KV-POOL-15"}),
        (KeepsStaleIdentities, {"KV-HASH-1", "KV-POOL-15", "KV-POOL-17"}),
        (HitsEverything, {"KV-MGR-1"}),
        (ChangesOnErrors, {"KV-ERR-2", "KV-POOL-15"}),
    ],
)
def test_a_broken_small_manager_is_caught_from_outside(
    broken: type[MyManager], rules: set[str]
) -> None:
    found = {violation.rule for violation in checked(broken).violations}
    assert found
    assert found <= rules


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
