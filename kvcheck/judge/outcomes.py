"""Results of the directed suite for every known mistake, and which of them a subject is like.

`kvcheck/data/outcomes.json` is written by `python -m tests.judge.outcomes`: for each mistake of the
reference and of its twin the checks that fail, and what each violation names by itself. A subject
that fails the same checks in the same way most likely breaks the same rule.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from math import log, sqrt

from kvcheck.judge.blame import Evidence, Kind, Neighbour

FILE = "data/outcomes.json"
OF_ANOTHER_KIND = 0.2
"""Weight of a check that both fail if the violations name different rules."""


@dataclass(frozen=True)
class Outcomes:
    """The `rules` that each mistake (by its id) breaks, and the checks that it `failed`.

    `checks`: those that ran on all of them.
    """

    checks: tuple[str, ...]
    rules: Mapping[str, tuple[str, ...]]
    failed: Mapping[str, Mapping[str, Kind]]

    @cached_property
    def rarity(self) -> Mapping[str, float]:
        """Return the weight of each check: low where it fails for many mistakes."""
        times = Counter(check for failed in self.failed.values() for check in failed)
        most = len(self.failed) + 1
        return {check: log(most / max(times[check], 1)) for check in self.checks}


def from_text(text: str) -> Outcomes:
    shown = json.loads(text)
    checks, kinds = tuple(shown["checks"]), [(rule, name) for rule, name in shown["kinds"]]
    rules, failed = {}, {}
    for mistake, (broken, by_kind) in shown["failed"].items():
        rules[mistake] = tuple(broken)
        failed[mistake] = {checks[n]: kinds[kind] for kind, numbers in by_kind for n in numbers}
    return Outcomes(checks, rules, failed)


@cache
def known() -> Outcomes:
    """Return the outcomes in the package's data."""
    return from_text(files("kvcheck").joinpath(FILE).read_text(encoding="utf-8"))


def neighbours(
    evidence: Sequence[Evidence], outcomes: Outcomes | None = None
) -> tuple[Neighbour, ...]:
    """Return the known mistakes that fail some of the same checks, the likest first.

    The likeness is the cosine of their failures, rare ones weighted most. Only checks that also ran
    on the subject count.
    """
    outcomes = outcomes or known()
    shown = [each for each in evidence if each.check in outcomes.rarity]
    weight = {each.check: outcomes.rarity[each.check] ** 2 for each in shown}
    failed = {each.check: each.kind for each in shown if each.kind is not None}
    own = sqrt(sum(weight[check] for check in failed))
    found = []
    for name, theirs in outcomes.failed.items():
        both = theirs.keys() & failed.keys()
        if not both:
            continue
        shared = sum(
            weight[check] * (1.0 if theirs[check] == failed[check] else OF_ANOTHER_KIND)
            for check in both
        )
        other = sqrt(sum(weight[check] for check in theirs if check in weight))
        if own * other:
            found.append(Neighbour(name, outcomes.rules[name], shared / (own * other)))
    return tuple(sorted(found, key=lambda each: -each.likeness))
