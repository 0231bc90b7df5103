"""Results that the plugin's tests read: each is the same in every process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import kvref
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import NOT_EXERCISED, UNBROKEN
from kvcheck.play import watchdog
from kvcheck.play.verdicts import Level
from kvcheck.pytest_plugin.examination import Examination
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from tests.mistakes import mistaken

REFERENCE = kvref.implementation()


def examine(subject: Implementation, seed: int = 0) -> Examination:
    options = Options(Level.SAFETY, Budget(0.0, 8), ("KV-POOL-*",), seed)
    return Examination(subject, REFERENCE, options, "fast")


class Spy(ReferenceImplementation):
    """Notes for which configurations managers were made."""

    def __init__(self) -> None:
        super().__init__()
        self.configs: list[ManagerConfig] = []

    def create(self, config: ManagerConfig, **options: object) -> KVCacheManager:
        self.configs.append(config)
        return super().create(config)


def configs_of(number: int, *, seed: int = 0) -> list[ManagerConfig]:
    """Return the configurations that random test `number` tries."""
    spy = Spy()
    assert examine(spy, seed).random_violation(number, ()) == (None, set())
    return spy.configs


def test_a_random_test_tries_the_same_programs_wherever_it_runs() -> None:
    first = configs_of(3)
    assert len(first) > 50
    assert configs_of(3) == first
    assert configs_of(4) != first
    assert configs_of(3, seed=1) != first


def test_a_random_test_repeats_nothing_that_the_test_of_a_rule_shows() -> None:
    found = examine(mistaken("LeaksUnhashedBlocks", audits=True))
    violation, _ = found.random_violation(0, ())
    assert violation is not None
    assert violation.rule == "KV-POOL-15"
    assert found.random_violation(0, found.broken_rules) == (None, {"KV-POOL-15"})


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "PATIENCE_SECONDS", seconds)
        yield


def test_when_programs_failed_for_too_long_the_others_are_not_run() -> None:
    with patience(-1.0):
        found = examine(mistaken("LeaksUnhashedBlocks", audits=True))
        assert found.report.gave_up
        assert UNBROKEN not in {outcome.verdict for outcome in found.outcomes.values()}
        assert found.random_violation(0, ()) == (None, set())


def test_a_rule_passes_only_if_something_about_it_came_to_its_end() -> None:
    right = examine(REFERENCE).outcomes
    assert right["KV-POOL-1"].verdict == UNBROKEN
    assert right["KV-POOL-15"].verdict == UNBROKEN  # checked in every program
    assert right["KV-POOL-6"].verdict == NOT_EXERCISED
    assert right["KV-POOL-6"].reason == "level safety does not decide it"
