"""Which rule is broken: every check that fails or passes is evidence about the rules it is about.

A difference shows in the call that happens to tell of it: a window that frees one token early shows
in the order of the free queue. So a rule is blamed by all directed checks about it, failed and
passed (Ochiai's coefficient, as in spectrum-based fault localization), never by the call alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import MappingProxyType

from kvcheck.play.agreement import AS_RECORDED, AS_THE_REFERENCE
from kvcheck.play.verdicts import Violation

DIFFERENCES = (AS_THE_REFERENCE, AS_RECORDED)

Kind = tuple[str, str]
"""The rule and the check that a violation names by itself: what counts as one finding."""


def cause_of(kind: Kind) -> str:
    """A finding's name between runs: blame may differ with time and other findings, this not."""
    return " ".join(kind)


@dataclass(frozen=True)
class Evidence:
    """What came of one directed check. `kind`: of the violation that ended it; None: it passed."""

    check: str
    rules: tuple[str, ...]
    kind: Kind | None = None


@dataclass(frozen=True)
class Suspect:
    """A rule with failed checks. `suspicion`: 1 if they are all that failed and none passed."""

    rule: str
    suspicion: float
    num_failed: int
    num_passed: int


def suspects(evidence: Sequence[Evidence]) -> tuple[Suspect, ...]:
    """The rules that failed checks are about, the most suspicious first."""
    failed: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for each in evidence:
        (passed if each.kind is None else failed).update(set(each.rules))
    total = sum(each.kind is not None for each in evidence)
    first = {rule: n for n, rule in enumerate(r for each in evidence for r in each.rules)}
    found = [
        Suspect(rule, number / sqrt(total * (number + passed[rule])), number, passed[rule])
        for rule, number in failed.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.suspicion, first[each.rule])))


def blamed(
    violations: Iterable[Violation],
    evidence: Sequence[Evidence],
    ranked: Sequence[Suspect],
    known: Mapping[Kind, tuple[str, str]] = MappingProxyType({}),
) -> tuple[Violation, ...]:
    """The violations, each under the most suspicious rule of the checks that show it, worst first.

    `known`: the rule of the known mistake that shows a finding just so, and what is wrong there.
    Only a difference has no rule of its own: an invariant names one, and a check of a rule does. A
    difference that only random programs or vectors show stays under the rule of its call.
    """
    place = {suspect.rule: number for number, suspect in enumerate(ranked)}
    rules: dict[Kind, set[str]] = {}
    for each in evidence:
        if each.kind is not None:
            rules.setdefault(each.kind, set()).update(each.rules)

    def under_its_rule(violation: Violation) -> Violation:
        about = rules.get(violation.kind, set())
        rule, like = known.get(violation.kind, ("", ""))
        if violation.name not in DIFFERENCES:
            rule = violation.rule
        elif not rule and about:
            rule = min(about, key=lambda each: place[each])
        cause = cause_of(violation.kind)
        return replace(violation, rule=rule or violation.rule, like=like, cause=cause)

    found = [under_its_rule(violation) for violation in violations]
    last = len(place)
    return tuple(sorted(found, key=lambda each: place.get(each.rule, last)))


def in_doubt(evidence: Iterable[Evidence]) -> frozenset[str]:
    """Rules with a check that failed or did not come to its end: nobody may call them unbroken."""
    return frozenset(rule for each in evidence if each.kind is not None for rule in each.rules)
