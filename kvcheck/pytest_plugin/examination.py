"""The results that the tests share: a process runs each example once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.causes import SHRINK_SECONDS
from kvcheck.judge.findings import DIRECTED
from kvcheck.judge.options import BUDGETS, Options, judged
from kvcheck.judge.outcome import Report, RuleOutcome
from kvcheck.judge.parts import Answer, answer
from kvcheck.judge.sides import Sides
from kvcheck.judge.suite import Suite
from kvcheck.judge.telling import told
from kvcheck.play import watchdog
from kvcheck.play.fit import random_program
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Violation, made_smaller
from kvcheck.rules.directed import EXAMPLES
from kvspec.interface import Implementation

SHRINKABLE_SECONDS = 1.0
"""Programs that take longer are not shrunk."""

RANDOM_TESTS = (("directed", 0), ("fast", 20), ("ci", 150), ("deep", 2000))
"""Number of random tests for each budget, one batch of programs each. The numbers are fixed, unlike
the seconds of `kvspec check`, so that a test is the same on every machine. The reference takes one
or two seconds for each."""


class Examination:
    """Checks one subject under one set of options; results are computed when first needed."""

    def __init__(
        self, subject: Implementation, oracle: Implementation, options: Options, budget: str
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options = judged(options, subject)
        self.sides = Sides(subject, oracle, options)
        self.num_random_tests = dict(RANDOM_TESTS)[budget]
        self.failing_seconds = 0.0

    @cached_property
    def report(self) -> Report:
        """The report of all examples of this level that check a selected rule."""
        directed = replace(self.options, budget=dict(BUDGETS)["directed"])
        return Suite(self.subject, None, directed).run()

    @cached_property
    def outcomes(self) -> dict[str, RuleOutcome]:
        return rule_outcomes(self.report)

    @property
    def broken_rules(self) -> frozenset[str]:
        return frozenset(violation.rule for violation in self.report.violations)

    def shown_for(self, rule: str) -> Violation | None:
        """Return a violation of this rule, else what ended the first failed example about it."""
        violations = self.report.violations
        found = [violation for violation in violations if violation.rule == rule]
        shown_by = self.report.shown_by.items()
        causes = {place: cause for cause, places in shown_by for place in places}
        names = (f"{DIRECTED} {example.name}" for example in EXAMPLES if rule in example.rules)
        for cause in (causes[name] for name in names if name in causes):
            found += [violation for violation in violations if violation.cause == cause]
        return found[0] if found else None

    def told(self, violation: Violation) -> Violation:
        """Return the violation of an example with all that a report shows."""
        return told(violation, self.subject, self.oracle, self.options)

    @property
    def is_exhausted(self) -> bool:
        """Whether failing programs have used up the time set aside for them."""
        return self.failing_seconds > watchdog.PATIENCE_SECONDS

    def random_violation(
        self, number: int, known: Collection[str]
    ) -> tuple[Violation | None, set[str]]:
        """Return the first violation among the random programs of test `number`, shrunk.

        It is of a selected rule that is not in `known`. Also returns the rules of `known` that were
        broken again.
        """
        again: set[str] = set()
        options = self.options
        for program in random_programs(options.seed, number, options.budget.max_steps):
            if self.is_exhausted:
                break
            asked = (program, self.subject.capabilities, options.policy)
            hashes_matter, oracle = self.sides.hashes_matter, self.oracle
            fitting = random_program(*asked, hashes_matter=hashes_matter, oracle=oracle)
            violation = None if fitting is None else self._answer(fitting).violation
            if violation is None or not options.is_wanted(violation.rule):
                continue
            if violation.rule not in known:
                return self._made_small(violation), again
            again.add(violation.rule)
        return None, again

    def _answer(self, program: Program) -> Answer:
        found = answer(self.sides, program)
        if found.violation is not None:
            self.failing_seconds += found.seconds
        return found

    def _made_small(self, found: Violation) -> Violation:
        """Shrink the program of a violation, unless running it takes too long."""
        again = self._answer(found.program)
        is_same = again.violation is not None and again.violation.kind == found.kind
        if not is_same or again.seconds > SHRINKABLE_SECONDS:
            return found
        return made_smaller(found, lambda each: self._answer(each).violation, SHRINK_SECONDS)
