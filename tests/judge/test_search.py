"""The recount of the search, and that random programs reach every situation."""

from __future__ import annotations

import itertools
from collections import Counter

import kvref
from kvcheck.play.performing import perform
from kvcheck.play.random_programs import random_programs
from kvcheck.play.runner import Performed, Runner
from kvcheck.play.search import search
from kvcheck.play.situations import SITUATIONS, missed
from kvcheck.play.verdicts import Level, first_violation

REFERENCE = kvref.implementation()


class Recount:
    def __init__(self) -> None:
        self.num_compared = 0

    def after_operation(self, runner: Runner, done: Performed) -> None:
        request = done.request
        if done.name != "get_computed_blocks" or request is None or len(runner.specs) < 2:
            return
        answer = done.outcome.result
        if answer["num_uncached_common_prefix_tokens"] is None:
            return  # nothing was looked up
        hashes = runner.subject.player.requests[request.name].block_hashes
        num_tokens = len(request.seat.tokens)
        found = search(runner.config, runner.specs, done.before.snapshot, hashes, num_tokens)
        assert found.length_tokens == answer["num_computed_tokens"]
        self.num_compared += 1

    def after_step(self, runner: Runner) -> None:
        """Nothing to compare."""


def test_the_recount_of_a_search_agrees_with_the_reference() -> None:
    """A subject whose rounds and drops are compared must search as the rules say."""
    recount = Recount()
    for program in itertools.chain(random_programs(1, 0, 30), random_programs(1, 1, 30)):
        perform(Runner(program, REFERENCE, checks=[recount]), program.steps)
    assert recount.num_compared > 100


def test_random_programs_reach_every_situation() -> None:
    """Within what a fast budget runs in a few seconds; the rarest is a third round."""
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
