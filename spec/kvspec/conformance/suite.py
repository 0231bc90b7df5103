"""The suite: directed programs first, random ones after, one verdict per rule."""

from __future__ import annotations

import fnmatch
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from hypothesis import HealthCheck, Phase, given, seed, settings

from kvspec.conformance.examples import EXAMPLES, example_violation
from kvspec.conformance.examples.bench import LeftOut
from kvspec.conformance.fit import directed_program, random_program
from kvspec.conformance.generators import programs
from kvspec.conformance.mixed_configs import mixed_configs
from kvspec.conformance.scenarios import SCENARIOS
from kvspec.conformance.shrink import shrink
from kvspec.conformance.situations import missed
from kvspec.conformance.steps import Program
from kvspec.conformance.verdicts import Level, Violation, first_violation
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, Implementation
from kvspec.policy import Policy

BATCH = 100

UNSEEN = ("the order of the free queue", "cached keys and counts", "events against keys")
"""What nobody sees of a subject without Feature.SNAPSHOT."""


@dataclass(frozen=True)
class Budget:
    """How long to look: random programs for `seconds`, at most `max_steps` steps each."""

    seconds: float
    max_steps: int


BUDGETS = (
    ("directed", Budget(0.0, 0)),
    ("fast", Budget(20.0, 30)),
    ("ci", Budget(180.0, 40)),
    ("deep", Budget(1e9, 80)),
)


@dataclass(frozen=True)
class Options:
    """What to check.

    `rules`: patterns of rule ids; `policy`: the subject's declared choices; `name`, `oracle`: how
    subject and oracle are found again.
    """

    level: Level
    budget: Budget
    rules: tuple[str, ...] = ("*",)
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    name: str = "kvref"
    oracle: str = "kvref"


@dataclass(frozen=True)
class Report:
    """What came of it.

    `violations`: the first, shrunk, of each broken (rule, check). `directed`, `random`: programs
    run. `left_out`: directed programs that need what the subject does not have, and what that is.
    `unseen`: what could not be checked for lack of a snapshot. `situations`: how often each came
    up; `missed`: never.
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

    @property
    def conforms(self) -> bool:
        """No rule was broken."""
        return not self.violations

    @property
    def missed(self) -> tuple[str, ...]:
        """Situations that never came up."""
        return missed(self.situations)


def rule_sentences() -> dict[str, str]:
    """Every rule of the contract: id -> sentence."""
    text = files("kvspec").joinpath("data/rules.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def random_programs(run_seed: int, batch: int, max_steps: int) -> list[Program]:
    """Batch number `batch` of the random programs of a run; the same for equal arguments."""
    drawn: list[Program] = []

    @seed(run_seed * 1_000_003 + batch)
    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(mixed_configs(), max_steps))
    def draw(program: Program) -> None:
        drawn.append(program)

    draw()
    return drawn


class Suite:
    """One run of the suite. `progress` hears how far it is: (phase, share done)."""

    def __init__(
        self,
        subject: Implementation,
        oracle: Implementation | None,
        options: Options,
        progress: Callable[[str, float], None] = lambda phase, share: None,
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options
        self.progress = progress
        self.situations: Counter[str] = Counter()
        self.violations: dict[tuple[str, str], Violation] = {}
        self.left_out: dict[str, tuple[str, ...]] = {}
        self.can = subject.capabilities
        self.hashes_matter = options.level is not Level.SAFETY
        self.num_directed = self.num_random = 0

    def run(self) -> Report:
        """Directed programs, then random ones until the budget is spent.

        Raises UnsupportedError at level identity for a subject without Feature.SNAPSHOT.
        """
        if self.options.level is Level.IDENTITY and Feature.SNAPSHOT not in self.can.features:
            raise UnsupportedError("snapshot, which level identity compares", self.can.name)
        start = time.monotonic()
        self._directed()
        self._random(time.monotonic())
        return Report(
            self.subject.capabilities.name,
            self.options,
            tuple(self.violations.values()),
            self.num_directed,
            self.num_random,
            self.left_out,
            self.situations,
            time.monotonic() - start,
            () if Feature.SNAPSHOT in self.can.features else UNSEEN,
        )

    def _directed(self) -> None:
        chosen = [program for program in SCENARIOS if self._is_wanted(program.rules)]
        for number, program in enumerate(chosen):
            self.progress("directed", number / len(chosen))
            fitting, lacks = directed_program(
                program, self.can, self.options.policy, hashes_matter=self.hashes_matter
            )
            if lacks:
                self.left_out[program.name] = tuple(lacks)
                continue
            self.num_directed += 1
            violation = self._verdict(fitting)
            if violation is not None:
                self._keep(violation)
        self._examples()

    def _examples(self) -> None:
        """What is asked without a program; there is nothing to make smaller."""
        for example in EXAMPLES:
            if not self._is_wanted(example.rules) or not example.binds_at(self.options.level):
                continue
            try:
                violation = example_violation(example, self.subject, self.options.policy)
            except LeftOut as reason:
                self.left_out[example.name] = tuple(str(reason).split(", "))
                continue
            self.num_directed += 1
            if violation is not None:
                self.violations.setdefault((violation.rule, violation.name), violation)

    def _random(self, start: float) -> None:
        budget = self.options.budget
        for batch in self._batches(start):
            for program in random_programs(self.options.seed, batch, budget.max_steps):
                if time.monotonic() - start > budget.seconds:
                    return
                fitting = random_program(
                    program, self.can, self.options.policy, hashes_matter=self.hashes_matter
                )
                if fitting is None:
                    continue
                self.num_random += 1
                violation = self._verdict(fitting)
                if violation is not None and self._is_wanted((violation.rule,)):
                    self._keep(violation)

    def _batches(self, start: float) -> Iterator[int]:
        batch = 0
        while (spent := time.monotonic() - start) < self.options.budget.seconds:
            self.progress("random", spent / self.options.budget.seconds)
            yield batch
            batch += 1

    def _verdict(self, program: Program) -> Violation | None:
        return first_violation(
            program, self.subject, self.options.level, self.oracle, self.situations
        )

    def _is_wanted(self, rules: Sequence[str]) -> bool:
        return not rules or any(
            fnmatch.fnmatchcase(rule, pattern) for rule in rules for pattern in self.options.rules
        )

    def _keep(self, violation: Violation) -> None:
        """The first of each kind, made small."""
        kind = (violation.rule, violation.name)
        if kind in self.violations:
            return
        self.violations[kind] = violation

        def fails(program: Program) -> bool:
            again = first_violation(program, self.subject, self.options.level, self.oracle)
            return again is not None and (again.rule, again.name) == kind

        small = shrink(violation.program, fails, seconds=5.0)
        again = first_violation(small, self.subject, self.options.level, self.oracle)
        if again is not None:
            self.violations[kind] = again
