"""kvref and kvfast side by side at the sizes of production, with options as engines set them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import pytest

from kvcheck.judge.choices import chosen_programs
from kvcheck.judge.production import later_program, production_programs
from kvcheck.play.steps import Program
from kvspec.interface import Implementation
from tests.lockstep.choosing import ChoosingEngine
from tests.lockstep.engines import DecodingEngine, engines, steps_compared
from tests.lockstep.inside import LongInsideEngine, large_programs
from tests.lockstep.production import (
    MAX_STEPS,
    SEED,
    STEPS,
    add_engine,
    choosing,
    compared,
    decoding,
    states,
)
from tests.lockstep.sizes import SIZES
from tests.lockstep.tally import Tally
from tests.lockstep.test_lockstep import build

NUM_PROGRAMS = 58
NUM_ENGINES = 12
NUM_CROWDS = 3
NUM_CHOICES = 8
"""Enough that each was made."""
NUM_INSIDE = 12
NUM_LATER = 4
NUM_MORE = 60


@pytest.fixture(params=["compiled", pytest.param("uncompiled", marks=pytest.mark.deep)])
def fast(request: pytest.FixtureRequest) -> Implementation:
    """Return the build that ships, and under --deep the other."""
    return build(request.param)


def programs() -> Iterator[Program]:
    """Those of each commit, and whatever brings an option that was not drawn until then."""
    usual = itertools.islice(production_programs(SEED, 0, MAX_STEPS), NUM_PROGRAMS)
    under_choices = chosen_programs(SEED, MAX_STEPS)
    always = itertools.chain(usual, itertools.islice(under_choices, NUM_CHOICES))
    tally = Tally()
    for program in always:
        tally.add_program(program)
        yield program
    random = Random(SEED)
    later = (later_program(random, MAX_STEPS) for _ in range(NUM_LATER))
    inside = itertools.islice(large_programs(SEED, MAX_STEPS), NUM_INSIDE)
    for program in itertools.chain(later, inside):
        tally.add_program(program)
        yield program
    for program in itertools.islice(under_choices, NUM_MORE):
        missing = tally.never_drawn_by_programs()
        tally.add_program(program)
        if tally.never_drawn_by_programs() != missing:
            yield program


def test_programs_of_production_sizes_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert sum(compared(program, fast) for program in programs()) > 1000


def test_every_option_of_an_engine_is_drawn_by_programs() -> None:
    tally = Tally()
    for program in programs():
        tally.add_program(program)
    assert not tally.never_drawn_by_programs()
    assert min(tally.single[name] for name in ("events off", "statistics off", "residency off")) > 9


def test_whole_steps_of_production_sizes_are_those_of_the_loop(fast: Implementation) -> None:
    tally = Tally()
    played = [
        steps_compared(random, fast, STEPS)
        for random in itertools.islice(engines(SEED), NUM_ENGINES)
    ]
    for _, crowd in itertools.islice(decoding(SEED), NUM_CROWDS):
        played.append(steps_compared(crowd, fast, STEPS, kind=DecodingEngine))
    for one in itertools.islice(choosing(SEED), NUM_CHOICES):
        played.append(steps_compared(one, fast, STEPS, kind=ChoosingEngine))
    for state in itertools.islice(states(SEED), NUM_INSIDE):
        played.append(steps_compared(state, fast, STEPS, kind=LongInsideEngine))
    for engine in played:
        add_engine(tally, engine)
    assert not tally.never_drawn_by_engines()
    assert sum(engine.num_granted for engine in played) > 200
    assert sum(engine.num_refused for engine in played) > 100
    most = [engine.most_requests for engine in played]
    for size in SIZES:
        if size.unit == "requests":
            assert min(most) < size.value < max(most), size
