"""Shrink the ways in which a rule is broken, and report a few, the smallest first."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

from kvcheck.judge.ledger import Ledger
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import HANG, Level, Violation, first_violation, made_smaller
from kvspec.interface import Implementation

SHRINK_SECONDS, MORE_SECONDS = 5.0, 0.5
"""Seconds allowed for the first violation of a kind and for one in another way;
`Budget.shrink_seconds` limits all of them together."""

SHRINK_ATTEMPTS, MORE_ATTEMPTS = 1000, 100
"""The same limits in attempts, where no clock may decide: about as many as fit these seconds."""

MOST_WAYS = 3
"""Ways reported per rule; where several checks name the rule, each is reported."""


@dataclass
class Shrinker:
    """Shrinks what was `found`, while `seconds` last. `compared`: the oracle to compare with, if
    any. `is_counted`: limit attempts, not seconds."""

    found: Ledger
    subject: Implementation
    level: Level
    compared: Implementation | None
    seconds: float
    is_counted: bool = False

    def keep(self, violation: Violation) -> None:
        with self._spending():
            seconds, attempts = self._limits()
            small = made_smaller(violation, self._verdict, seconds, attempts=attempts)
            self.found.violations[violation.kind] = small

    def more(self) -> None:
        """Shrink and keep a few violations per rule that differ in their way."""
        told = {each.way for each in self.found.listed}
        number = Counter(rule for rule, _ in self.found.violations)
        for way, violation in self.found.more.items():
            if way in told or number[violation.rule] >= MOST_WAYS:
                continue
            number[violation.rule] += 1
            small = violation
            if violation.name != HANG and not violation.is_example and self._limits()[0] > 0:
                with self._spending():
                    seconds, attempts = self._limits(MORE_SECONDS, MORE_ATTEMPTS)
                    limits = (seconds, attrgetter("kind", "way"))
                    small = made_smaller(violation, self._verdict, *limits, attempts=attempts)
            self.found.told_more[way] = small

    def _verdict(self, program: Program) -> Violation | None:
        return first_violation(program, self.subject, self.level, self.compared)

    def _limits(
        self, seconds: float = SHRINK_SECONDS, attempts: int = SHRINK_ATTEMPTS
    ) -> tuple[float, float]:
        """Return the seconds and attempts for one violation; one of them is unlimited."""
        if self.is_counted:
            return math.inf, attempts
        return min(seconds, self.seconds), math.inf

    @contextmanager
    def _spending(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds = max(0.0, self.seconds - (time.monotonic() - begin))


def ways_told(
    violations: Sequence[Violation], further: Sequence[Violation], others: Iterable[Violation]
) -> tuple[tuple[Violation, ...], Mapping[str, int]]:
    """Return the violations to report per rule, and the number left out of each rule.

    `violations`: the first of each kind, all reported. `further`: in other ways, reported up to a
    limit. `others`: not shrunk.
    """
    number = Counter(each.rule for each in violations)
    told, left = list(violations), Counter(each.rule for each in others)
    for each in further:
        number[each.rule] += 1
        if number[each.rule] <= MOST_WAYS:
            told.append(replace(each, like=""))  # the first was looked up
        else:
            left[each.rule] += 1
    return smallest_first(told), dict(left)


def smallest_first(violations: Sequence[Violation]) -> tuple[Violation, ...]:
    """Order by rule as given, within a rule the fewest operations first, without repeats."""
    by_rule: dict[str, dict[object, Violation]] = {each.rule: {} for each in violations}
    for each in sorted(violations, key=lambda one: len(one.operations)):
        name = each.program.name if not each.operations else ""
        said = (name, each.program.config, each.expected, each.observed)
        story = (each.cause, repr(each.operations), *said)
        by_rule[each.rule].setdefault(story, each)
    return tuple(chain.from_iterable(found.values() for found in by_rule.values()))
