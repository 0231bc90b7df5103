"""Find the broken rule: each check that fails or passes is evidence about its rules.

A difference shows in whichever call happens to reveal it: a window that frees one token early
shows in the order of the free queue. So a rule is blamed by all directed checks about it, failed
and passed (Ochiai's coefficient, as in spectrum-based fault localization), never by the call alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import MappingProxyType

from kvcheck.play.agreement import AS_RECORDED, AS_THE_REFERENCE
from kvcheck.play.verdicts import HANG, PROTOCOL, Violation

DIFFERENCES = (AS_THE_REFERENCE, AS_RECORDED)
CRASHES = ("errors_are_typed", "legal_calls_succeed", HANG)

Kind = tuple[str, str]
"""The rule and the check that a violation names by itself: the identity of a finding."""


def cause_of(kind: Kind) -> str:
    return " ".join(kind)


@dataclass(frozen=True)
class Evidence:
    """The outcome of one directed check. `kind`: of the violation that ended it; None: passed."""

    check: str
    rules: tuple[str, ...]
    kind: Kind | None = None


@dataclass(frozen=True)
class Suspect:
    """A rule with failed checks. `suspicion`: 1 if all failures are its own and it passed none."""

    rule: str
    suspicion: float
    num_failed: int
    num_passed: int


def suspects(evidence: Sequence[Evidence]) -> tuple[Suspect, ...]:
    """Rank the rules that failed checks are about or name, the most suspicious first.

    How far the failed checks are theirs counts (Ochiai), and half the share of violations that name
    them; a crash names whatever was called.
    """
    failed: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for each in evidence:
        (passed if each.kind is None else failed).update(set(each.rules))
    kinds = [each.kind for each in evidence if each.kind is not None]
    ochiai = {r: n / sqrt(len(kinds) * (n + passed[r])) for r, n in failed.items()}
    score = defaultdict(float, ochiai)
    for rule, name in kinds:
        if name not in CRASHES and rule != PROTOCOL:
            score[rule] += 0.5 / len(kinds)
    first = {rule: n for n, rule in enumerate(r for each in evidence for r in each.rules)}
    found = (Suspect(rule, ochiai.get(rule, 0.0), failed[rule], passed[rule]) for rule in score)
    return tuple(sorted(found, key=lambda each: (-score[each.rule], first.get(each.rule, 0))))


def blamed(
    violations: Iterable[Violation],
    evidence: Sequence[Evidence],
    ranked: Sequence[Suspect],
    known: Mapping[Kind, tuple[str, str]] = MappingProxyType({}),
) -> tuple[Violation, ...]:
    """Return the violations, each under the most suspicious rule of its checks, worst first.

    `known`: the rule of the known mistake that shows exactly this finding, and what is wrong there.
    Only a difference has no rule of its own: an invariant names one, and a check of a rule does. A
    difference that only random programs show stays under the rule of its call.
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
