"""Who does not support a configuration says so when it is made: nothing is broken by that."""

from __future__ import annotations

from typing import Any

import pytest

import kvref
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import BROKEN, NOT_APPLICABLE
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import KVCacheManager
from kvspec.requirements import LIMITS, VALUES
from tests.judge.declared import Declared
from tests.judge.test_declared import ALL

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
    assert not any(found.verdict == BROKEN for found in outcomes.values())
    if level is not Level.SAFETY:
        assert outcomes["KV-MAMBA-4"].verdict == NOT_APPLICABLE
        assert outcomes["KV-MAMBA-4"].reason == f"needs {WHY}"


def test_names_of_values_and_limits_are_those_of_the_protocol() -> None:
    with open("spec/protocol.md", encoding="utf-8") as file:
        text = file.read()
    section = text[text.index("### Values and limits") : text.index("## Handles")]
    assert all(f"`{name}`" in section for name in (*VALUES, *LIMITS))
