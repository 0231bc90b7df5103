"""The corpus of guided drawing: both builds as the reference, and mistakes that it finds."""

from __future__ import annotations

from random import Random

import pytest

from kvcheck.mistakes import find
from kvcheck.play.steps import Batch
from kvspec.interface import Implementation
from tests.fuzz import guided
from tests.fuzz.core import fitting
from tests.fuzz.guided import Reach, differs, drawn, read, smallest, told, written
from tests.lockstep.test_lockstep import fast
from tests.mistakes import of_kvfast

__all__ = ["fast"]  # the fixture

PROGRAMS = read()
FOUND = (
    *("CountsOneRunOfRevived", "CoverageOfOneRunOnly", "GrowingForgetsKeys", "HitsOverlapAbove64"),
    *("ListsAreLostAt256", "LongHitsAreNull", "LongListsAreReleasedInOrder", "RegistersOneRunOnly"),
    *("TouchesTheFirst64", "ZeroQueueIsLostAt64"),
)
"""Mistakes of kvfast that the first program finds; it was drawn without knowing them."""


def test_the_reference_and_both_builds_play_the_corpus_alike(fast: Implementation) -> None:
    assert {any(isinstance(s, Batch) for s in each.steps) for each in PROGRAMS} == {True, False}
    for program in PROGRAMS:
        assert differs(program, fast) is None, written(program)


@pytest.mark.parametrize("name", FOUND)
def test_mistakes_that_it_was_not_made_for_are_found(name: str) -> None:
    assert differs(PROGRAMS[0], find(name, of_kvfast()).make())


def test_changed_programs_fit_their_model_and_are_the_same_for_a_seed() -> None:
    first, second = Random(3), Random(3)
    made = [drawn(first, PROGRAMS) for _ in range(30)]
    assert made == [drawn(second, PROGRAMS) for _ in range(30)]
    assert made == list(map(fitting, made))


def test_a_program_that_reaches_nothing_new_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what reaches most comes first."""
    monkeypatch.setattr(guided, "SHRINK_SECONDS", 0.0)
    arcs = [frozenset(("a.py", 1, k) for k in some) for some in ({1, 2}, {1, 2, 3}, {4})]
    found = list(zip(PROGRAMS[1:4], arcs, strict=True))
    assert list(smallest(Reach("uncompiled"), found)) == PROGRAMS[2:4]


def test_the_command_says_where_both_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mistake in place of kvfast, what it prints is a test to paste."""
    monkeypatch.setattr(guided, "SHRINK_SECONDS", 0.0)
    wrong = find("ListsAreLostAt256", of_kvfast()).make()
    program = next(one for one in PROGRAMS if differs(one, wrong))
    text = told(program, str(differs(program, wrong)), wrong)
    assert "def test_kv_" in text
    assert "first_violation(program" in text
