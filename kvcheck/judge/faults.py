"""The fault dictionary: known mistakes that behave just as the subject does.

A story that the subject fails is played on the reference with one mistake each, those about the
most suspicious rules first. One that gives the same wrong answers, story after story, says more
than any rule: what is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcheck.judge.blame import Kind, Suspect
from kvcheck.judge.options import Options
from kvcheck.mistakes import Mistake, installed
from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.rules.directed import example_violation, find_example
from kvspec.interface import Implementation

MOST_STORIES = 8
MOST_MISTAKES = 80
SECONDS = 20.0
OF_THE_CALL = 0.3
"""How much suspicion a rule gets for being named by a violation itself."""
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
    ranked: Sequence[Suspect],
    mistakes: Iterable[Mistake],
    oracle: Implementation,
    options: Options,
) -> tuple[Likeness, ...]:
    """The mistakes that share a story, those that share most first, as far as the time reaches.

    `violations` as they were found, under the rule that each names by itself.
    """
    stories = stories_of(violations)
    deadline = time.monotonic() + SECONDS
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
    """The mistake that shows this finding, and most of the others."""
    return next((each for each in found if kind in each.shared), None)


def stories_of(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """The shortest that can be played again: no walks of vectors, no protocol."""
    playable = [each for each in violations if each.walk is None]
    playable = [each for each in playable if each.is_example or each.program.steps]
    return tuple(sorted(playable, key=lambda each: len(each.operations))[:MOST_STORIES])


def candidates(
    mistakes: Iterable[Mistake], ranked: Sequence[Suspect], violations: Sequence[Violation]
) -> list[Mistake]:
    """Those about a suspicious rule, or about one that a violation names, the likeliest first."""
    suspicion = {suspect.rule: suspect.suspicion for suspect in ranked}
    for violation in violations:  # the call that tells of it says something, too
        suspicion[violation.rule] = suspicion.get(violation.rule, 0.0) + OF_THE_CALL

    def likeliness(mistake: Mistake) -> float:
        first, *rest = mistake.rules
        return max([suspicion.get(first, -1.0), *(suspicion.get(r, -1.0) / 2 for r in rest)])

    return sorted(
        (each for each in mistakes if likeliness(each) >= 0.0), key=likeliness, reverse=True
    )


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
    """The suspects, before them the rules of the mistakes that share most stories."""
    most = max((len(each.shared) for each in found), default=0)
    best = [each.mistake for each in found if len(each.shared) == most]
    votes: dict[str, float] = {}
    for mistake in best:
        for number, rule in enumerate(mistake.rules):
            votes[rule] = votes.get(rule, 0.0) + 1.0 / (1 + number) / len(best)
    known = {suspect.rule for suspect in ranked}
    more = [Suspect(rule, 0.0, 0, 0) for rule in votes if rule not in known]
    place = {each.rule: number for number, each in enumerate([*ranked, *more])}
    order = [*ranked, *more]
    return tuple(sorted(order, key=lambda each: (-votes.get(each.rule, 0.0), place[each.rule])))
