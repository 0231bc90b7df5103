"""The result of a run of the suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kvcheck.judge.blame import Suspect
from kvcheck.judge.findings import Compared
from kvcheck.judge.options import Options
from kvcheck.play.situations import missed
from kvcheck.play.verdicts import Violation
from kvspec.editions import NEWEST


class Verdict(StrEnum):
    """Verdicts on a rule; the first four are those on rules that apply.

    In doubt: checks of it failed, and for each of them another rule is more suspicious. Not
    exercised: nothing that ran was about it. Not applicable: all its checks need what the subject
    lacks.
    """

    UNBROKEN = "unbroken"
    BROKEN = "broken"
    IN_DOUBT = "in doubt"
    NOT_EXERCISED = "not exercised"
    NOT_APPLICABLE = "does not apply"
    HIDDEN = "cannot be checked"


@dataclass(frozen=True)
class RuleOutcome:
    """The verdict on one rule. `reason`: why it is neither broken nor unbroken."""

    rule: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Reached:
    """The progress of a run. `share` of the phase is done; None: unknown. `note`: what it does."""

    phase: str
    share: float | None
    note: str


@dataclass(frozen=True)
class Report:
    """The result of a run.

    `violations`: the first, shrunk, of each kind, and few in other ways, under the most suspicious
    rule, worst first, and of each rule the smallest first. `suspects`: rules with failed checks and
    those of mistakes that behave so, ranked. `in_doubt`: rules with a failed check. `directed`,
    `random`: numbers of examples and programs that ran. `left_out`: those for which the subject
    lacks something, and what. `unseen`: what could not be checked for lack of a snapshot.
    `situations`: how often each occurred; `missed`: never. `exercised`: rules with a check that
    finished, or that every program checks. `gave_up`: too many programs hung. `shown_by`: which
    examples show each cause. `looked_at`: parts that ran completely. `expected`: compared with
    the file of known findings. `version`: of the subject; `edition`: the one it was written for.
    `more`: number of ways per broken rule beside those reported. `refusal`: why no manager of any
    declared type is made; "" if one is.
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
    refusal: str = ""

    @property
    def conforms(self) -> bool:
        """Whether no rule is broken, and not for want of any manager."""
        return not (self.violations or self.refusal)

    @property
    def missed(self) -> tuple[str, ...]:
        return missed(self.situations)
