"""What a run has found so far: violations, what came of each check, and what was left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvcheck.judge.blame import Evidence, Kind, Suspect, in_doubt, suspects
from kvcheck.judge.coverage import exercised
from kvcheck.judge.findings import shown_by
from kvcheck.judge.outcomes import neighbours
from kvcheck.judge.state import State
from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvspec.interface import Capabilities, Implementation


@dataclass
class Ledger:
    """`violations`: the first of each kind. `more`: in other ways, by these; `told_more`: those of
    them that are told. `left_out`: checks, each with what is lacking. `about`: rules of checks that
    came to their end. `looked_at`: which parts of the suite were run whole."""

    violations: dict[Kind, Violation] = field(default_factory=dict)
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    about: set[str] = field(default_factory=set)
    evidence: list[Evidence] = field(default_factory=list)
    more: dict[tuple[str, str], Violation] = field(default_factory=dict)
    told_more: dict[tuple[str, str], Violation] = field(default_factory=dict)
    looked_at: set[str] = field(default_factory=set)

    def leave_out(self, check: str, reason: LeftOut) -> None:
        """A check was not run."""
        self.left_out[check] = tuple(str(reason).split(", "))

    def note(self, check: str, rules: Collection[str], violation: Violation | None) -> None:
        """A check came to its end, or to a violation."""
        kind = None if violation is None else violation.kind
        self.evidence.append(Evidence(check, tuple(rules), kind))
        if violation is None:
            self.about.update(rules)

    def add(self, violation: Violation) -> None:
        """A violation, unless the rule is known to be broken in this way."""
        first = self.violations.setdefault(violation.kind, violation)
        if first.way != violation.way:
            self.more.setdefault(violation.way, violation)

    @property
    def listed(self) -> tuple[Violation, ...]:
        """The first of each kind, as they were found."""
        return tuple(self.violations.values())

    @property
    def others(self) -> tuple[Violation, ...]:
        """What is broken in other ways than those that are told."""
        known = {*self.told_more, *(each.way for each in self.listed)}
        return tuple(each for way, each in self.more.items() if way not in known)

    @property
    def ranked(self) -> tuple[Suspect, ...]:
        """The rules with failed checks, by these and by the known mistakes that fail them, too."""
        return suspects(self.evidence, neighbours(self.evidence))

    @property
    def in_doubt(self) -> frozenset[str]:
        """Rules with a failed check."""
        return in_doubt(self.evidence)

    @property
    def shown_by(self) -> Mapping[str, tuple[str, ...]]:
        """What shows each cause."""
        return shown_by(self.violations, self.evidence)

    def exercised(self, level: Level, can: Capabilities, num_random: int) -> frozenset[str]:
        """Rules that were looked at; those of every program if there was one."""
        some = num_random > 0 or bool(self.evidence)
        return exercised(self.about, level, can, by_programs=some)

    def kept_in(self, state: State) -> State:
        """The state with every violation found until now."""
        found = (*self.listed, *self.more.values())
        return replace(
            state,
            programs=tuple(v.program for v in found if not v.is_example),
            examples=tuple(v.program.name for v in found if v.is_example),
        )

    def take_over(
        self,
        state: State,
        subject: Implementation,
        level: Level,
        compared: Implementation | None,
    ) -> Iterable[str]:
        """What an earlier run found, tried again; the names of examples that are to be tried."""
        self.left_out = dict(state.left_out)
        self.about = set(state.about)
        for program in state.programs:
            violation = first_violation(program, subject, level, compared)
            if violation is not None:
                self.add(violation)
        yield from state.examples
        # What was mended since is no evidence any more.
        kinds = {None, *self.violations}
        self.evidence = [each for each in state.evidence if each.kind in kinds]
