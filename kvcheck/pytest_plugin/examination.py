"""What the tests find out: each directed program is run once in a process, and each test asks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from kvcheck.judge.causes import SHRINK_SECONDS
from kvcheck.judge.coverage import always_checked, exercised
from kvcheck.judge.options import Options, judged
from kvcheck.judge.random_programs import random_programs
from kvcheck.judge.telling import told
from kvcheck.judge.unobservable import UNOBSERVABLE
from kvcheck.play.fit import random_program
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation, made_smaller
from kvcheck.play.watchdog import PATIENCE_SECONDS
from kvcheck.rules.directed import EXAMPLES, Example, example_violation
from kvspec.interface import Implementation

SHRINKABLE_SECONDS = 1.0
"""A program that takes longer is not made smaller."""

RANDOM_TESTS = (("directed", 0), ("fast", 20), ("ci", 150), ("deep", 2000))
"""How many tests of random programs a budget has, each of one batch: fixed numbers, unlike the
seconds of `kvspec check`, so that a test is the same on every machine. The reference takes a second
or two for each."""


@dataclass(frozen=True)
class Outcome:
    """What came of a directed program or an example.

    `rules`: what it is about. `lacks`: what the subject does not have and it needs; then it was not
    run. `exhausted`: not run because others had failed for too long.
    """

    rules: tuple[str, ...]
    violation: Violation | None = None
    lacks: tuple[str, ...] = ()
    exhausted: bool = False

    @property
    def came_to_its_end(self) -> bool:
        """It was run and nothing was broken in it."""
        return self.violation is None and not self.lacks and not self.exhausted


class Examination:
    """One subject under one set of options. Everything is found out when it is first asked for."""

    def __init__(
        self, subject: Implementation, oracle: Implementation, options: Options, budget: str
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options = judged(options, subject)
        self.can = subject.capabilities
        self.hashes_matter = options.level is not Level.SAFETY
        self.num_random_tests = dict(RANDOM_TESTS)[budget]
        self.failing_seconds = 0.0

    def is_wanted(self, rule: str) -> bool:
        """Whether the options ask for this rule."""
        return any(fnmatchcase(rule, pattern) for pattern in self.options.rules)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every directed program and example of this level that is about a wanted rule."""
        return tuple(self._of_examples())

    @cached_property
    def broken_rules(self) -> frozenset[str]:
        """What the directed programs and examples broke."""
        return frozenset(found.violation.rule for found in self.outcomes if found.violation)

    def broken(self, rule: str) -> Violation | None:
        """The first violation of a rule, made small."""
        for outcome in self.outcomes:
            if outcome.violation is not None and outcome.violation.rule == rule:
                return told(outcome.violation, self.subject, self.oracle, self.options)
        return None

    def why_not_checked(self, rule: str) -> str | None:
        """Why nothing directed was about a rule that is not broken, or None."""
        if rule in UNOBSERVABLE:
            return f"cannot be checked from outside: {UNOBSERVABLE[rule]}"
        about = [found for found in self.outcomes if rule in found.rules]
        if not about and rule not in always_checked(self.can):
            return "nothing directed is about this rule at this level"
        lacks = min((outcome.lacks for outcome in about), key=len, default=())
        if lacks:
            return f"needs {', '.join(lacks)}: not among the capabilities"
        if rule not in exercised((rule,), self.options.level, self.can):
            return "level safety does not decide about this rule"
        return None

    def undecided(self, rule: str) -> Outcome | None:
        """What is about the rule and did not come to its end, or None.

        For a rule that every program checks, any one that came to its end is enough.
        """
        could_run = [found for found in self.outcomes if not found.lacks]
        about = [found for found in could_run if rule in found.rules]
        short = [found for found in about if not found.came_to_its_end]
        if about:
            return short[0] if short else None
        ended = any(found.came_to_its_end for found in could_run)
        return None if ended or not could_run else could_run[0]

    @property
    def is_exhausted(self) -> bool:
        """Failing programs took too long to go on."""
        return self.failing_seconds > PATIENCE_SECONDS

    def random_violation(
        self, number: int, known: Collection[str]
    ) -> tuple[Violation | None, set[str]]:
        """The first violation among the random programs of test `number`, made small.

        Of a rule that was chosen and is not one of `known`; and which of those were broken again.
        """
        again: set[str] = set()
        options = self.options
        for program in random_programs(options.seed, number, options.budget.max_steps):
            if self.is_exhausted:
                break
            fitting = self._fitting(program)
            try:
                violation = None if fitting is None else self._verdict(fitting)
            except LeftOut:
                continue
            if violation is None or not self.is_wanted(violation.rule):
                continue
            if violation.rule not in known:
                return self._made_small(violation), again
            again.add(violation.rule)
        return None, again

    def _is_about_wanted(self, example: Example) -> bool:
        return any(map(self.is_wanted, example.rules))

    def _of_examples(self) -> Iterator[Outcome]:
        for example in filter(self._is_about_wanted, EXAMPLES):
            if not example.binds_at(self.options.level):
                continue
            if self.is_exhausted:
                yield Outcome(example.rules, exhausted=True)
                continue
            start = time.monotonic()
            try:
                violation = example_violation(
                    example, self.subject, self.options.policy, level=self.options.level
                )
            except LeftOut as reason:
                yield Outcome(example.rules, lacks=(str(reason),))
                continue
            if violation is not None:
                self.failing_seconds += time.monotonic() - start
            yield Outcome(example.rules, violation)

    def _fitting(self, program: Program) -> Program | None:
        """Return what the subject can do of a random program, if that is anything."""
        asked = (program, self.can, self.options.policy)
        return random_program(*asked, hashes_matter=self.hashes_matter, oracle=self.oracle)

    def _verdict(self, program: Program) -> Violation | None:
        start = time.monotonic()
        compared = None if self.options.self_checks_only else self.oracle
        violation = first_violation(program, self.subject, self.options.level, compared)
        if violation is not None:
            self.failing_seconds += time.monotonic() - start
        return violation

    def _made_small(self, violation: Violation) -> Violation:
        """The same violation by the smallest program found; the one there is if it takes long."""
        start = time.monotonic()
        again = self._verdict(violation.program)
        is_same = again is not None and again.kind == violation.kind
        if not is_same or time.monotonic() - start > SHRINKABLE_SECONDS:
            return violation
        return made_smaller(violation, self._verdict, SHRINK_SECONDS)
