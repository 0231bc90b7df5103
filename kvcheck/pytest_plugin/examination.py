"""The results that the tests share: a process runs each directed program once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from kvcheck.judge.causes import SHRINK_SECONDS
from kvcheck.judge.coverage import always_checked, exercised
from kvcheck.judge.options import Options, judged
from kvcheck.judge.parts import Answer, example_answer, program_answer
from kvcheck.judge.sides import Sides
from kvcheck.judge.telling import told
from kvcheck.judge.unobservable import UNOBSERVABLE
from kvcheck.play.fit import random_program
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Violation, made_smaller
from kvcheck.play.watchdog import PATIENCE_SECONDS
from kvcheck.rules.directed import EXAMPLES, Example
from kvspec.interface import Implementation

SHRINKABLE_SECONDS = 1.0
"""Programs that take longer are not shrunk."""

RANDOM_TESTS = (("directed", 0), ("fast", 20), ("ci", 150), ("deep", 2000))
"""Number of random tests for each budget, one batch of programs each. The numbers are fixed, unlike
the seconds of `kvspec check`, so that a test is the same on every machine. The reference takes one
or two seconds for each."""


@dataclass(frozen=True)
class Outcome:
    """The result of an example.

    `rules`: the rules that it checks. `lacks`: features that it needs and the subject lacks; then
    it was not run. `exhausted`: it was not run because others had failed for too long.
    """

    rules: tuple[str, ...]
    violation: Violation | None = None
    lacks: tuple[str, ...] = ()
    exhausted: bool = False

    @property
    def came_to_its_end(self) -> bool:
        """Whether the program ran to its end and broke no rule."""
        return self.violation is None and not self.lacks and not self.exhausted


class Examination:
    """Checks one subject under one set of options; results are computed when first needed."""

    def __init__(
        self, subject: Implementation, oracle: Implementation, options: Options, budget: str
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options = judged(options, subject)
        self.can = subject.capabilities
        self.sides, self.alone = Sides(subject, oracle, options), Sides(subject, None, options)
        self.num_random_tests = dict(RANDOM_TESTS)[budget]
        self.failing_seconds = 0.0

    def is_wanted(self, rule: str) -> bool:
        return any(fnmatchcase(rule, pattern) for pattern in self.options.rules)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Results of all examples of this level that check a selected rule."""
        return tuple(self._of_examples())

    @cached_property
    def broken_rules(self) -> frozenset[str]:
        return frozenset(found.violation.rule for found in self.outcomes if found.violation)

    def broken(self, rule: str) -> Violation | None:
        """Return the first violation of a rule, shrunk; None if it is not broken."""
        for outcome in self.outcomes:
            if outcome.violation is not None and outcome.violation.rule == rule:
                return told(outcome.violation, self.subject, self.oracle, self.options)
        return None

    def why_not_checked(self, rule: str) -> str | None:
        """Return why no example checked a rule that is not broken; None if one did."""
        if rule in UNOBSERVABLE:
            return f"cannot be checked from outside: {UNOBSERVABLE[rule]}"
        about = [found for found in self.outcomes if rule in found.rules]
        if not about and rule not in always_checked(self.can):
            return "no example checks this rule at this level"
        lacks = min((outcome.lacks for outcome in about), key=len, default=())
        if lacks:
            return f"needs {', '.join(lacks)}, which the implementation does not declare"
        if rule not in exercised((rule,), self.options.level, self.can):
            return "level safety does not decide this rule"
        return None

    def undecided(self, rule: str) -> Outcome | None:
        """Return a result about the rule that did not run to its end; None if all did.

        For a rule that every program checks, a single program that ran to its end is enough.
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
        """Whether failing programs have used up the time set aside for them."""
        return self.failing_seconds > PATIENCE_SECONDS

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
            asked = (program, self.can, options.policy)
            hashes_matter, oracle = self.sides.hashes_matter, self.oracle
            fitting = random_program(*asked, hashes_matter=hashes_matter, oracle=oracle)
            violation = None if fitting is None else self._answer(fitting).violation
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
            answer = self._counted(example_answer(self.alone, example))
            lacks = () if answer.left_out is None else (str(answer.left_out),)
            yield Outcome(example.rules, answer.violation, lacks)

    def _counted(self, answer: Answer) -> Answer:
        if answer.violation is not None:
            self.failing_seconds += answer.seconds
        return answer

    def _answer(self, program: Program) -> Answer:
        return self._counted(program_answer(self.sides, program))

    def _made_small(self, found: Violation) -> Violation:
        """Shrink the program of a violation, unless running it takes too long."""
        again = self._answer(found.program)
        is_same = again.violation is not None and again.violation.kind == found.kind
        if not is_same or again.seconds > SHRINKABLE_SECONDS:
            return found
        return made_smaller(found, lambda each: self._answer(each).violation, SHRINK_SECONDS)
