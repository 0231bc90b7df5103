"""Options of a run of the suite: the level, the budget and the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

from kvcheck.play.fit import policy_of
from kvcheck.play.verdicts import Level
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, Implementation
from kvspec.policy import Policy

ENDLESS = 1e9
"""Seconds of a budget that ends only when the run is stopped."""


HASHES_COMPARED = "sha256_cbor"
"""The hash function of the programs that are compared with the reference."""


@dataclass(frozen=True)
class Budget:
    """How long to look: random programs for `seconds`, at most `max_steps` steps each.

    `shrink_seconds`: seconds for shrinking, in all. `directed`: play the examples first.
    `programs`: run as many random programs whatever time they take, and let no clock decide what is
    found: equal runs have equal reports on any machine, as long as nothing hangs.
    """

    seconds: float
    max_steps: int
    shrink_seconds: float = 20.0
    directed: bool = True
    programs: int | None = None

    @property
    def is_counted(self) -> bool:
        return self.programs is not None

    def counted(self, programs: int) -> Budget:
        """Return a budget of `programs` random programs instead of seconds."""
        return replace(self, seconds=ENDLESS if programs else 0.0, programs=programs)


BUDGETS = (
    ("directed", Budget(0.0, 0)),
    ("fast", Budget(20.0, 30)),
    ("ci", Budget(180.0, 40, 60.0)),
    ("deep", Budget(ENDLESS, 80, ENDLESS)),
)


@dataclass(frozen=True)
class Options:
    """The options of a run.

    `rules`: patterns of rule ids; `policy`: the subject's declared choices; `name`, `oracle`: names
    by which subject and oracle are found again. `self_checks_only`: they are the same code
    (`same_code`), so nothing is compared, and records, examples and invariants decide. `fail_fast`:
    end at the first violation.
    """

    level: Level
    budget: Budget
    rules: tuple[str, ...] = ("*",)
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    name: str = "kvref"
    oracle: str = "kvref"
    self_checks_only: bool = False
    fail_fast: bool = False

    def is_wanted(self, rule: str) -> bool:
        return any(fnmatchcase(rule, pattern) for pattern in self.rules)


def same_code(subject: Implementation, oracle: Implementation) -> bool:
    """Check whether both have one class and equal parts, so that a comparison finds nothing.

    A subject behind the protocol is another program, whatever name it gives.
    """
    return type(subject) is type(oracle) and _parts(subject) == _parts(oracle)


def _parts(implementation: Implementation) -> Mapping[str, object]:
    """Return the values it was built with, without those derived since."""
    kept = getattr(implementation, "__dict__", {})
    derived = {
        name for name in kept if isinstance(getattr(type(implementation), name, 0), cached_property)
    }
    return {name: value for name, value in kept.items() if name not in derived}


def level_for(level: Level | None, subject: Implementation) -> Level:
    """Return the level, or without one the highest that can be checked of the subject.

    Level identity needs Feature.SNAPSHOT, else UnsupportedError is raised. Nearly all that level
    behaviour compares with the reference needs the hashes of the contract.
    """
    can = subject.capabilities
    shows_all = Feature.SNAPSHOT in can.features
    if level is None and HASHES_COMPARED not in can.hash_functions:
        return Level.SAFETY
    if level is None:
        return Level.IDENTITY if shows_all else Level.BEHAVIOUR
    if level is Level.IDENTITY and not shows_all:
        lacking = "snapshot, which level identity compares (use --level behaviour or safety)"
        raise UnsupportedError(lacking, can.name)
    return level


def judged(options: Options, subject: Implementation) -> Options:
    """Return the options with the subject's policy (`policy_of`).

    Raises UnsupportedError for a level that the subject cannot show (`level_for`).
    """
    level_for(options.level, subject)
    return replace(options, policy=policy_of(options.policy, subject.capabilities))
