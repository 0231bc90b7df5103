"""kvref and kvfast side by side at the sizes of production, with options as engines set them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields

import pytest

from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.lockstep.builds import build
from tests.lockstep.choices import OTHERS, TOGGLES, Tally, chosen_programs
from tests.lockstep.production import MAX_STEPS, SEED, compared, stories

NUM_STORIES = 136
"""Among them 56 programs of usual options, and 4 to 14 of each other kind."""
NUM_MORE = 60


@pytest.fixture(params=["compiled", pytest.param("uncompiled", marks=pytest.mark.deep)])
def fast(request: pytest.FixtureRequest) -> Implementation:
    """Return the build that ships, and under --deep the other."""
    return build(request.param)


def programs() -> Iterator[Program]:
    tally = Tally()
    under_choices = itertools.islice(chosen_programs(SEED, MAX_STEPS), NUM_MORE)
    for _, program in itertools.islice(stories(SEED), NUM_STORIES):
        tally.add_program(program)
        yield program
    for program in under_choices:
        missing = tally.never_drawn()
        tally.add_program(program)
        if tally.never_drawn() != missing:
            yield program


def test_programs_of_production_sizes_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert sum(compared(program, fast) for program in programs()) > 5000


def test_every_option_is_drawn_by_programs() -> None:
    tally = Tally()
    for program in programs():
        tally.add_program(program)
    assert not tally.never_drawn()
    assert min(tally.counts[f"usual {name}"] for name in TOGGLES) > 9


def test_small_programs_draw_every_option() -> None:
    assert {*OTHERS, "exact_block_ids", "default_retention"} == {
        each.name for each in fields(Policy)
    }
    tally = Tally()
    for program in (p for batch in range(2) for p in random_programs(0, batch, 40)):
        tally.add_program(program)
    assert not tally.never_drawn_small()
