"""The fault dictionary: known mistakes that behave just as the subject does.

A story that the subject fails is played on the reference with one mistake each, those first that
fail the same directed checks (`kvcheck.judge.outcomes`). One that gives the same wrong answers,
story after story, says more than any rule: what is wrong.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcheck.judge.blame import LATER, Kind, Neighbour, Suspect
from kvcheck.judge.options import Options
from kvcheck.mistakes import Mistake, installed
from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.rules.directed import example_violation, find_example
from kvspec.interface import Implementation

MOST_STORIES = 8
MOST_MISTAKES, MOST_ALIKE = 80, 40
SECONDS = 20.0
IMPLEMENTATIONS = ("manager", "planner", "steps")
"""Kinds of mistakes that are made as an implementation."""


@dataclass(frozen=True)
class Likeness:
    """A mistake, and the findings that it shows just as they were seen, of those it was shown."""

    mistake: Mistake
    shared: tuple[Kind, ...]
    num_stories: int


def likenesses(
    violations: Sequence[Violation],
    near: Sequence[Neighbour],
    mistakes: Iterable[Mistake],
    oracle: Implementation,
    options: Options,
) -> tuple[Likeness, ...]:
    """The mistakes that share a story, those that share most first, as far as the time reaches.

    `violations` as they were found, under the rule that each names by itself.
    """
    stories = stories_of(violations)
    deadline = math.inf if options.budget.is_counted else time.monotonic() + SECONDS
    found: list[Likeness] = []
    for mistake in candidates(mistakes, near, violations)[:MOST_MISTAKES]:
        if not stories or time.monotonic() >= deadline:
            break
        made = mistake.make()
        shared = tuple(each.kind for each in stories if shows(each, made, oracle, options))
        if shared:
            found.append(Likeness(mistake, shared, len(stories)))
    return tuple(sorted(found, key=lambda each: -len(each.shared)))


def alike(found: Iterable[Likeness], kind: Kind) -> Likeness | None:
    """The mistake that shows this finding, and most of the others."""
    return next((each for each in found if kind in each.shared), None)


def stories_of(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """The shortest that can be played again: no protocol."""
    playable = list(violations)
    playable = [each for each in playable if each.is_example or each.program.steps]
    return tuple(sorted(playable, key=lambda each: len(each.operations))[:MOST_STORIES])


def candidates(
    mistakes: Iterable[Mistake], near: Sequence[Neighbour], violations: Iterable[Violation]
) -> list[Mistake]:
    """Those that fail the same checks, the likest first, then those about a rule that is named."""
    among = {mistake.id: mistake for mistake in mistakes}
    like = [among[each.mistake] for each in near if each.mistake in among][:MOST_ALIKE]
    named = {violation.rule for violation in violations}
    about = (each for each in among.values() if each.rules[0] in named)
    return list({each.id: each for each in (*like, *about)}.values())


def known_of(oracle: str) -> tuple[Mistake, ...]:
    """The mistakes that are made from the oracle, and that somebody can see."""
    return tuple(
        each
        for each in installed()
        if each.origin == oracle and each.kind in IMPLEMENTATIONS and not each.equivalent
    )


def shows(
    violation: Violation, made: Implementation, oracle: Implementation, options: Options
) -> bool:
    """Whether the mistake gives the same wrong answer at the same place of the story."""
    again = played(violation, made, oracle, options)
    if again is None or len(again.operations) != len(violation.operations):
        return False
    return (again.name, again.expected, again.observed, again.detail) == (
        violation.name,
        violation.expected,
        violation.observed,
        violation.detail,
    )


def played(
    violation: Violation, made: Implementation, oracle: Implementation, options: Options
) -> Violation | None:
    """What the story shows of an implementation."""
    compared = None if options.level is Level.SAFETY else oracle
    try:
        if not violation.is_example:
            return first_violation(violation.program, made, options.level, compared)
        example = find_example(violation.program.name)
        return example_violation(example, made, options.policy, compared, options.level)
    except (LeftOut, KeyError):
        return None


def by_likeness(ranked: Sequence[Suspect], found: Sequence[Likeness]) -> tuple[Suspect, ...]:
    """The suspects, before them the rules of the mistakes that show every story, if there are."""
    twins = [each.mistake for each in found if len(each.shared) == each.num_stories]
    votes: dict[str, float] = {}
    for mistake in twins:
        for number, rule in enumerate(mistake.rules):
            votes[rule] = votes.get(rule, 0.0) + LATER**number
    named = {suspect.rule for suspect in ranked}
    order = [*ranked, *(Suspect(rule, 0.0, 0, 0) for rule in votes if rule not in named)]
    return tuple(sorted(order, key=lambda each: -votes.get(each.rule, 0.0)))
