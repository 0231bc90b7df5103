"""Random small schedules, and what the statement over time has against an implementation on them.

Programs as `kvspec check` draws them, and between their steps what those leave out: loads beyond
the longest sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count, islice
from random import Random

from kvcheck.play.checks import CompareCheck
from kvcheck.play.giving_up import drop
from kvcheck.play.performing import finish, may_load, perform_step
from kvcheck.play.random_programs import random_programs
from kvcheck.play.runner import Check, Runner
from kvcheck.play.scheduler import PREEMPTED, RUNNING, WAITING
from kvcheck.play.steps import Program
from kvspec.interface import Implementation
from tests.brute_force.over_time import OverTime
from tests.lockstep.choices import in_flight

MAX_STEPS = 40
LOADS = 0.06
"""How often a load beyond the longest sequence comes between two steps."""

NUM_NAMED = 400
"""Stories that mistakes are shown."""


@dataclass(frozen=True)
class Story:
    program: Program
    seed: int

    def told(self, runner: Runner) -> int:
        random = Random(self.seed)
        for step in self.program.steps:
            perform_step(runner, step)
            if random.random() < LOADS:
                load_too_much(runner, random)
        finish(runner)
        return len(runner.operations)


def load_too_much(runner: Runner, random: Random) -> None:
    """Load more than the longest sequence has room for, and then drop everything."""
    request = runner.pick(random.randrange(6), RUNNING, WAITING, PREEMPTED)
    if request is None or (request.seat.phase == RUNNING and not may_load(runner, request)):
        return
    left = runner.config.max_model_len_tokens - request.seat.num_computed
    granted, _ = runner.do(
        "allocate_slots",
        request,
        request.seat.asks(
            0,
            num_external_computed_tokens=max(1, left + random.randrange(7)),
            num_lookahead_tokens=random.choice((0, 2)),
            num_encoder_tokens=3,
            delay_cache_blocks=True,
        ),
    )
    if granted is not None:
        request.seat = request.seat.granted(0, num_external=left, later=True)
        drop(runner, request, again=True, later=False)


def stories(seed: int = 0) -> Iterator[Story]:
    """Yield schedules evicted by LRU: the history of a block does not say who used it most."""
    drawn = chain.from_iterable(random_programs(seed, batch, MAX_STEPS) for batch in count())
    for number, program in enumerate(drawn):
        config = replace(program.config, eviction_order="lru")
        yield Story(replace(program, config=config), number)


@cache
def first_stories(number: int) -> Sequence[Story]:
    return tuple(islice(stories(), number))


def in_flight_stories(number: int) -> Iterator[Story]:
    for story in first_stories(number):
        yield replace(story, program=in_flight(story.program, Random(story.seed)))


def story_named(name: str) -> Story:
    return first_stories(NUM_NAMED)[int(name.removeprefix("story "))]


def follow(story: Story, implementation: Implementation) -> int:
    """Play it and return the number of operations. Raise where the history differs."""
    runner = Runner(story.program, implementation)
    checks: list[Check] = [OverTime(runner.config)]
    runner.checks = checks
    return story.told(runner)


def history_finds(story: Story, implementation: Implementation) -> str | None:
    """Describe how an implementation differs from the history, errors included."""
    try:
        follow(story, implementation)
    except Exception as error:  # whatever a broken part ends in
        return f"{type(error).__name__}: {error}"
    return None


def agree(story: Story, one: Implementation, other: Implementation) -> bool:
    """Check that two have the same results and states, operation by operation.

    An operation that both refuse with the same error, whichever is asked first, ends the story.
    """
    return _ending(story, one, other) == _ending(story, other, one)


def _ending(story: Story, one: Implementation, other: Implementation) -> str:
    """Return how a story of two ends: "", a refusal, or a difference that names both."""
    runner = Runner(story.program, one, other)
    checks: list[Check] = [CompareCheck(exact_ids=True)]
    runner.checks = checks
    try:
        story.told(runner)
    except Exception as error:
        return str(error)
    return ""
