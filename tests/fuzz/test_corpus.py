"""The corpus of guided drawing: both builds as the reference, and mistakes that it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvref
from kvcheck.mistakes import find
from kvcheck.play.steps import Batch
from kvspec.interface import Implementation
from tests.fuzz import guided
from tests.fuzz.corpus import differs, read, written
from tests.fuzz.guided import Drawing, fewest, fitting, told
from tests.lockstep.test_lockstep import fast
from tests.mistakes import of_kvfast

__all__ = ["fast"]  # the fixture

STORIES = read()
REFERENCE = kvref.implementation()


def test_the_corpus_is_small_and_of_both_kinds() -> None:
    assert 15 < len(STORIES) < 80
    assert {any(isinstance(s, Batch) for s in story.steps) for story in STORIES} == {True, False}
    assert len({written(story) for story in STORIES}) == len(STORIES)


def test_the_reference_and_both_builds_play_the_corpus_alike(fast: Implementation) -> None:
    for story in STORIES:
        assert differs(story, fast, REFERENCE) is None, written(story)


FOUND = (
    "CountsOneRunOfRevived",
    "CoverageOfOneRunOnly",
    "GrowingForgetsKeys",
    "HitsOverlapAbove64",
    "ListsAreLostAt256",
    "LongHitsAreNull",
    "LongListsAreReleasedInOrder",
    "RegistersOneRunOnly",
    "TouchesTheFirst64",
    "ZeroQueueIsLostAt64",
)
"""Mistakes of kvfast that the first story finds; it was drawn without knowing them."""


@pytest.mark.parametrize("name", FOUND)
def test_mistakes_that_it_was_not_made_for_are_found(name: str) -> None:
    assert differs(STORIES[0], find(name, of_kvfast()).make(), REFERENCE)


def test_a_story_that_reaches_nothing_new_is_left_out() -> None:
    """And what reaches most comes first."""
    cases = ((1, {1, 2}), (2, {1, 2, 3}), (3, {4}))
    told = {n: replace(STORIES[0], name=str(n)) for n, _ in cases}
    reach = [(told[n], frozenset({("a.py", 1, k) for k in found})) for n, found in cases]
    assert [story.name for story, _ in fewest(reach)] == ["2", "3"]


def test_changed_programs_fit_their_model_and_are_the_same_for_a_seed() -> None:
    first, second = (Drawing(3, STORIES) for _ in range(2))
    drawn = [first.story() for _ in range(30)]
    assert drawn == [second.story() for _ in range(30)]
    for story in drawn:
        assert fitting(story) == story


def test_the_command_says_where_both_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mistake in place of kvfast, what it prints is a test to paste."""
    wrong = find("ListsAreLostAt256", of_kvfast()).make()
    program = next(one for one in STORIES if differs(one, wrong))
    difference = differs(program, wrong)
    assert difference is not None
    monkeypatch.setattr(guided, "SHRINK_SECONDS", 0.0)
    text = told(program, difference, wrong, REFERENCE)
    assert "def test_kv_" in text
    assert "first_violation(program" in text
