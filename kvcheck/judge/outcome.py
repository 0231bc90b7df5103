"""What came of a run of the suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kvcheck.judge.blame import Suspect
from kvcheck.judge.findings import Compared
from kvcheck.judge.options import Options
from kvcheck.play.situations import missed
from kvcheck.play.verdicts import Violation
from kvspec.editions import NEWEST

UNBROKEN, BROKEN, IN_DOUBT, NOT_EXERCISED, NOT_APPLICABLE, HIDDEN = VERDICTS = (
    "unbroken",
    "broken",
    "in doubt",
    "not exercised",
    "does not apply",
    "cannot be checked",
)
"""What a run finds of a rule. Nothing it did was about one that is not exercised; one in doubt has
checks that failed, and another rule is more suspicious of each of them. One does not apply if all
its checks need what the subject does not declare. The first four are the rules that apply."""


@dataclass(frozen=True)
class RuleOutcome:
    """What a run found of one rule. `reason`: why it is neither broken nor unbroken."""

    rule: str
    verdict: str
    reason: str = ""

    @property
    def applies(self) -> bool:
        """It can be checked of this subject."""
        return self.verdict not in (NOT_APPLICABLE, HIDDEN)


@dataclass(frozen=True)
class Reached:
    """How far a run is. `share` of the phase is done; None: nobody knows. `note`: at what."""

    phase: str
    share: float | None
    note: str


@dataclass(frozen=True)
class Report:
    """What came of it.

    `violations`: the first, shrunk, of each kind, and few in other ways, under the rule that is
    most suspicious, worst first, and of each rule the smallest. `suspects`: rules with failed
    checks, and those of mistakes that behave so, ranked. `in_doubt`: rules with a check that
    failed. `directed`, `random`: examples and programs run.
    `left_out`: those that need what the subject does not have, and what that is. `unseen`: what
    could not be checked for lack of a snapshot. `situations`: how often each came up; `missed`:
    never. `exercised`: rules that something was about which came to its end, or that every program
    checks. `gave_up`: too many programs hung. `shown_by`: which examples show each
    cause. `looked_at`: whether they were run whole. `expected`: beside the findings that a
    file knows. `version`: of the subject; `edition`: that it was written for. `more`: in how many
    ways rules are broken beside those that are told.
    """

    subject: str
    options: Options
    violations: tuple[Violation, ...]
    directed: int
    random: int
    left_out: Mapping[str, tuple[str, ...]]
    situations: Counter[str]
    seconds: float
    unseen: tuple[str, ...] = ()
    exercised: frozenset[str] = frozenset()
    interrupted: bool = False
    gave_up: bool = False
    suspects: tuple[Suspect, ...] = ()
    in_doubt: frozenset[str] = frozenset()
    shown_by: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    looked_at: frozenset[str] = frozenset()
    expected: Compared | None = None
    version: str = ""
    edition: str = NEWEST
    more: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def conforms(self) -> bool:
        """No rule was broken."""
        return not self.violations

    @property
    def missed(self) -> tuple[str, ...]:
        """Situations that never came up."""
        return missed(self.situations)
