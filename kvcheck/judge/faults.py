"""The fault dictionary: known mistakes that behave exactly as the subject does.

Operations that the subject fails are played on the reference with one mistake each, first those
of the rules that are suspected most. A mistake that gives the same wrong results in each of them
says more than any rule: it shows the defect.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcheck.judge.blame import Kind, Suspect
from kvcheck.judge.options import Options
from kvcheck.judge.parts import answer
from kvcheck.judge.sides import Sides
from kvcheck.mistakes import Mistake, installed
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Violation
from kvcheck.rules.directed import Example, find_example
from kvspec.interface import Implementation

MOST_STORIES = 8
MOST_MISTAKES = 80
SECONDS = 20.0
IMPLEMENTATIONS = ("manager", "planner", "steps")
"""Kinds of mistakes that are built as an implementation."""


@dataclass(frozen=True)
class Likeness:
    """A mistake, and the findings that it reproduces exactly, of those that were tried."""

    mistake: Mistake
    shared: tuple[Kind, ...]
    num_stories: int


def likenesses(
    violations: Sequence[Violation],
    ranked: Sequence[Suspect],
    mistakes: Iterable[Mistake],
    oracle: Implementation,
    options: Options,
) -> tuple[Likeness, ...]:
    """Return mistakes that reproduce a finding, best first, as far as the time allows.

    `violations`: as they were found, under the rule that each names by itself.
    """
    stories = stories_of(violations)
    deadline = math.inf if options.budget.is_counted else time.monotonic() + SECONDS
    found: list[Likeness] = []
    for mistake in candidates(mistakes, ranked, violations)[:MOST_MISTAKES]:
        if not stories or time.monotonic() >= deadline:
            break
        made = mistake.make()
        shared = tuple(each.kind for each in stories if shows(each, made, oracle, options))
        if shared:
            found.append(Likeness(mistake, shared, len(stories)))
    return tuple(sorted(found, key=lambda each: -len(each.shared)))


def alike(found: Iterable[Likeness], kind: Kind) -> Likeness | None:
    """Return the mistake that shows this finding and most of the others."""
    return next((each for each in found if kind in each.shared), None)


def stories_of(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return the shortest violations that can be played again (no violation of the protocol)."""
    playable = list(violations)
    playable = [each for each in playable if each.is_example or each.program.steps]
    return tuple(sorted(playable, key=lambda each: len(each.operations))[:MOST_STORIES])


def candidates(
    mistakes: Iterable[Mistake], ranked: Sequence[Suspect], violations: Iterable[Violation]
) -> list[Mistake]:
    """Return mistakes of suspects, the most suspicious first, then of rules that are named."""
    named = (*(suspect.rule for suspect in ranked), *(each.rule for each in violations))
    place = {rule: number for number, rule in enumerate(dict.fromkeys(named))}
    first = {
        m: min((place[rule] for rule in m.rules if rule in place), default=-1) for m in mistakes
    }
    return sorted((m for m in first if first[m] >= 0), key=lambda m: first[m])


def known_of(oracle: str) -> tuple[Mistake, ...]:
    return tuple(
        each
        for each in installed()
        if each.origin == oracle and each.kind in IMPLEMENTATIONS and not each.equivalent
    )


def shows(
    violation: Violation, made: Implementation, oracle: Implementation, options: Options
) -> bool:
    """Play the violation again, on an implementation with a mistake."""
    part: Program | Example = violation.program
    if violation.is_example:
        try:
            part = find_example(part.name)
        except KeyError:
            return False
    again = answer(Sides(made, oracle, options), part).violation
    if again is None or len(again.operations) != len(violation.operations):
        return False
    members = ("name", "expected", "observed", "detail")
    return all(getattr(again, name) == getattr(violation, name) for name in members)


def by_likeness(ranked: Sequence[Suspect], found: Sequence[Likeness]) -> tuple[Suspect, ...]:
    """Put the rules of mistakes that reproduce every finding before the other suspects."""
    twins = [each.mistake for each in found if len(each.shared) == each.num_stories]
    votes: dict[str, float] = {}
    for mistake in twins:
        for number, rule in enumerate(mistake.rules, 1):
            votes[rule] = votes.get(rule, 0.0) + 1 / number
    named = {suspect.rule for suspect in ranked}
    order = [*ranked, *(Suspect(rule, 0.0, 0, 0) for rule in votes if rule not in named)]
    return tuple(sorted(order, key=lambda each: -votes.get(each.rule, 0.0)))
