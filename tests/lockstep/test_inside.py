"""Hits inside a block: kvfast, both builds, beside kvref, single calls and whole steps."""

from __future__ import annotations

from random import Random

import pytest

from kvcheck.mistakes import find
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation
from tests.lockstep.inside import find_difference, run, steps_inside
from tests.lockstep.test_lockstep import fast
from tests.mistakes import of_kvfast

__all__ = ["fast"]  # the fixture

NUM_DEEP_CALLS = 300_000
FOUND_BY = {
    "EndsOfRunsBeginAtTheNext": 4,
    "ShorterEndsAreCutToBlocks": 5,
    "CopiesAreFullAtOnce": 6,
    "EndsAreNotOwed": 2,
    "CopiesAreKeyedWhole": 3,
    "InnerStatesHaveNoBlock": 11,
    "MovedKeysCoverNothing": 2,
}
"""Of each mistake a seed whose first programs find it."""
DIRECTED = (
    *("MovedKeysLeaveTheirLikes", "StatesReturnOnlyAtTheirEnd", "InnerStateAfterGeneration"),
    "FullLooksAWholeBlockFurther",
)
"""No program meets them: directed checks do, `copies come one behind the other` the first."""


def broken(mistake: str) -> Implementation:
    made: Implementation = find(mistake, of_kvfast()).make()
    return made


def test_every_mistake_is_among_these() -> None:
    about = {each.id for each in of_kvfast() if each.rules[0].startswith("KV-INSIDE")}
    assert about == {*FOUND_BY, *DIRECTED}


def test_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert find_difference(fast, 5, 600, 40) >= 600


def test_whole_steps_are_those_of_the_loop(fast: Implementation) -> None:
    programs = [steps_inside(Random(seed), 20) for seed in range(3)]
    assert sum(run(program, fast, is_careful=False) for program in programs) > 500


@pytest.mark.deep
def test_many_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert find_difference(fast, 6, NUM_DEEP_CALLS, 60) >= NUM_DEEP_CALLS


@pytest.mark.parametrize("mistake", FOUND_BY)
def test_random_programs_find_mistakes(mistake: str) -> None:
    with pytest.raises(InvariantViolation):
        find_difference(broken(mistake), FOUND_BY[mistake], 150, 30)
