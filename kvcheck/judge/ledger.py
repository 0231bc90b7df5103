"""Findings of a run so far: violations, the outcome of each check, and what was left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kvcheck.judge.blame import Evidence, Kind, Suspect, cause_of, suspects
from kvcheck.judge.coverage import always_checked, exercised
from kvcheck.judge.findings import DIRECTED, RANDOM
from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Level, Violation
from kvspec.interface import Capabilities


@dataclass
class Ledger:
    """`violations`: the first of each kind. `more`: further ways. `told_more`: those of them that
    are reported. `left_out`: checks, each with what is lacking. `about`: rules of checks that
    finished. `looked_at`: which parts of the suite ran completely."""

    violations: dict[Kind, Violation] = field(default_factory=dict)
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    about: set[str] = field(default_factory=set)
    evidence: list[Evidence] = field(default_factory=list)
    more: dict[tuple[str, str], Violation] = field(default_factory=dict)
    told_more: dict[tuple[str, str], Violation] = field(default_factory=dict)
    looked_at: set[str] = field(default_factory=set)

    def leave_out(self, check: str, reason: LeftOut) -> None:
        self.left_out[check] = tuple(str(reason).split(", "))

    def note(self, check: str, rules: Collection[str], violation: Violation | None) -> None:
        kind = None if violation is None else violation.kind
        self.evidence.append(Evidence(check, tuple(rules), kind))
        if violation is None:
            self.about.update(rules)

    def add(self, violation: Violation) -> None:
        """Add a violation, unless the rule is known to be broken in this way."""
        first = self.violations.setdefault(violation.kind, violation)
        if first.way != violation.way:
            self.more.setdefault(violation.way, violation)

    @property
    def listed(self) -> tuple[Violation, ...]:
        """Return the first of each kind, in the order they were found."""
        return tuple(self.violations.values())

    @property
    def others(self) -> tuple[Violation, ...]:
        """Return violations in other ways than those that are reported."""
        known = {*self.told_more, *(each.way for each in self.listed)}
        return tuple(each for way, each in self.more.items() if way not in known)

    @property
    def ranked(self) -> tuple[Suspect, ...]:
        """Return the rules with failed checks, the most suspicious first."""
        return suspects(self.evidence)

    @property
    def in_doubt(self) -> frozenset[str]:
        """Return rules with a check that failed; they may not be called unbroken."""
        return frozenset(rule for each in self.evidence if each.kind for rule in each.rules)

    @property
    def shown_by(self) -> Mapping[str, tuple[str, ...]]:
        """Return for each cause the examples that show it; `RANDOM` only if none does."""
        places: dict[Kind, list[str]] = {kind: [] for kind in self.violations}
        for each in self.evidence:
            if each.kind in places:
                places[each.kind].append(f"{DIRECTED} {each.check}")
        return {cause_of(kind): tuple(found) or (RANDOM,) for kind, found in places.items()}

    def exercised(self, level: Level, can: Capabilities, num_random: int) -> frozenset[str]:
        """Return the rules that were checked; those of every program if one of their own passed."""
        always = always_checked(can)
        passed = (each.rules[0] for each in self.evidence if each.rules and each.kind is None)
        some = num_random > 0 or any(rule in always for rule in passed)
        return exercised(self.about, level, can, by_programs=some)
