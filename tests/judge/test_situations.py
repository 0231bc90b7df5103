"""Random programs reach every situation."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

import kvref
from kvcheck.play.random_programs import random_programs
from kvcheck.play.situations import SITUATIONS, missed
from kvcheck.play.verdicts import Level, first_violation
from tests.mistakes import mistaken

REFERENCE = kvref.implementation()


def test_random_programs_reach_every_situation() -> None:
    counts: Counter[str] = Counter()
    for batch in range(12):
        for program in random_programs(0, batch, 30):
            first_violation(program, REFERENCE, Level.SAFETY, None, counts)
        if not missed(counts):
            break
    assert missed(counts) == ()


def test_random_programs_are_the_same_for_equal_seeds() -> None:
    first = list(random_programs(3, 4, 20))
    assert first == list(random_programs(3, 4, 20))
    assert first != list(random_programs(3, 5, 20))
    assert first != list(random_programs(4, 4, 20))


def test_a_situation_that_never_came_up_is_named() -> None:
    counts = Counter(dict.fromkeys(SITUATIONS, 1))
    assert missed(counts) == ()
    del counts["align move"]
    assert missed(counts) == ("align move",)


@pytest.mark.parametrize("mistake", ["OneRound", "OneRoundForAnyTwo"])
def test_random_programs_need_every_round_of_a_search(mistake: str) -> None:
    subject = mistaken(mistake)
    drawn = chain.from_iterable(random_programs(0, batch, 30) for batch in range(12))
    found = (first_violation(each, subject, Level.IDENTITY, REFERENCE) for each in drawn)
    assert any(violation is not None for violation in found)
