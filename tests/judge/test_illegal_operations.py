"""Operations that a program calls illegal are illegal in every configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvref
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvspec.profile import find_profile
from tests.programs import configured, steps_of

GROUPS = (
    "full of 1",
    # Null is a legal hit in these two: the next token reads nothing of the first block.
    "window 1 of 1",
    "chunk 2 of 2",
    "window 3 of 2",
    "mamba all of 1",
)
STORY = (
    "arrive 0 0 1; break call=(N); admit; run; break call=(N)",
    "arrive 0 0 1 1; break who=1 call=(N); release; break call=(N)",
)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("number", range(len(ILLEGAL_OPERATIONS)))
def test_the_reference_refuses_every_illegal_operation(group: str, number: int) -> None:
    steps = tuple(steps_of(*(line.replace("N", str(number)) for line in STORY)))
    config = configured(f"pool 12; {group}")
    for policy in (config.policy, find_profile("vllm-0.33").policy):
        program = Program(replace(config, policy=policy), steps)
        assert first_violation(program, kvref.implementation(), Level.SAFETY) is None
