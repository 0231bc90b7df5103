"""The suite: examples, then random programs; one verdict per rule."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvcheck.judge import parts
from kvcheck.judge.blame import Suspect, blamed
from kvcheck.judge.causes import Shrinker, ways_told
from kvcheck.judge.faults import Likeness, alike, by_likeness, known_of, likenesses
from kvcheck.judge.findings import DIRECTED
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import ENDLESS, Options, judged
from kvcheck.judge.outcome import Reached, Report
from kvcheck.judge.parts import Answer
from kvcheck.judge.sides import Find, Sides
from kvcheck.play import watchdog
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import PROTOCOL, Violation
from kvcheck.play.watchdog import OutOfPatienceError
from kvcheck.rules.bench import refusal_of_all
from kvcheck.rules.directed import EXAMPLES, Example
from kvcheck.rules.random_plans import random_plan
from kvcheck.tasks import Call, Workers, in_order
from kvspec.interface import Feature, Implementation

BATCH = 100

UNSEEN = ("the order of the free queue", "cached keys and counts", "events against keys")
"""Rules that cannot be observed of a subject without Feature.SNAPSHOT."""

PLANS = 20
"""Random models to plan for per batch of random programs."""


class Suite:
    """One run of the suite. `progress` receives its progress.

    `workers`, if any, run the independent parts; they `find` subject and oracle by the names of the
    options. The report is the same, times aside, if programs are counted (`Budget.programs`).
    Raises UnsupportedError for a level that the subject cannot show.
    """

    def __init__(
        self,
        subject: Implementation,
        oracle: Implementation | None,
        options: Options,
        progress: Callable[[Reached], None] = lambda reached: None,
        find: Find | None = None,
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options = judged(options, subject)
        self.sides = Sides(subject, oracle, options, find)
        self.workers: Workers | None = None
        self.progress = progress
        self.can = subject.capabilities
        self.situations: Counter[str] = Counter()
        self.found = Ledger()
        self.num_directed = self.num_random = 0
        self.lost_seconds, self.is_slow = 0.0, False
        sides = (subject, options.level, self.sides.compared)
        budget = options.budget
        self.shrinker = Shrinker(self.found, *sides, budget.shrink_seconds, budget.is_counted)

    def run(self) -> Report:
        """Play the examples, then random programs until the budget is spent or Ctrl-C."""
        start = time.monotonic()
        interrupted = gave_up = False
        found: tuple[Likeness, ...] = ()
        try:
            if self.options.budget.directed:
                self._examples()
            self._random()
            if self.found.more and not self._has_ended:
                self._tell("further ways", None, "in which rules are broken")
            if not self._has_ended:
                self.shrinker.more()
            found = self._looked_up()
        except KeyboardInterrupt:
            interrupted = True
        except OutOfPatienceError:
            gave_up = True
        ranked, violations, more = self._blamed(found)
        refused = (self.subject, self.options.policy)
        return Report(
            self.can.name,
            self.options,
            violations,
            self.num_directed,
            self.num_random,
            self.found.left_out,
            self.situations,
            time.monotonic() - start,
            () if Feature.SNAPSHOT in self.can.features else UNSEEN,
            self.found.exercised(self.options.level, self.can, self.num_random),
            interrupted,
            gave_up,
            ranked,
            self.found.in_doubt,
            self.found.shown_by,
            frozenset(self.found.looked_at),
            version=self.can.version,
            edition=self.can.edition,
            more=more,
            refusal="" if violations or self.num_random else refusal_of_all(*refused),
        )

    def _looked_up(self) -> tuple[Likeness, ...]:
        """Return the known mistakes that show the same findings."""
        raw = self.found.listed
        if not raw or self.oracle is None:
            return ()
        self._tell("looking up", None, "known mistakes that behave so")
        among = known_of(self.options.oracle)
        return likenesses(raw, self.found.ranked, among, self.oracle, self.options)

    def _blamed(
        self, found: tuple[Likeness, ...]
    ) -> tuple[tuple[Suspect, ...], tuple[Violation, ...], Mapping[str, int]]:
        """Return the suspects, the violations under their rules, and how many are not reported."""
        raw = self.found.listed
        known = {}
        for violation in raw:
            one = alike(found, violation.kind)
            if one is not None:
                said = f"{one.mistake.about} ({one.mistake.id})"
                known[violation.kind] = (one.mistake.rules[0], said)
        ranked = by_likeness(self.found.ranked, found)
        kinds = (raw, tuple(self.found.told_more.values()), self.found.others)
        told = (blamed(each, self.found.evidence, ranked, known) for each in kinds)
        return ranked, *ways_told(*told)

    def _examples(self) -> None:
        """Play the examples of the rules, which are not shrunk."""
        level = self.options.level
        chosen = [e for e in EXAMPLES if self._is_wanted(e.rules) and e.binds_at(level)]
        for example, answer in zip(
            chosen, in_order(self.workers, self._example_calls(chosen)), strict=True
        ):
            self._take(example, answer)
            if self._has_ended:
                return
        self.found.looked_at.add(DIRECTED)

    def _example_calls(self, chosen: Sequence[Example]) -> Iterator[Call]:
        for number, example in enumerate(chosen):
            self._tell("examples", number / len(chosen), ", ".join(example.rules))
            yield parts.example, (self.sides, example.name)

    def _take(self, example: Example, answer: Answer) -> None:
        self._note_answer(answer)
        if answer.left_out is not None:
            self.found.leave_out(example.name, answer.left_out)
            return
        self.num_directed += 1
        self.found.note(example.name, example.rules, answer.violation)
        if answer.violation is not None:
            self.lost_seconds += answer.seconds - answer.lost_seconds  # a server may die each time
            self.found.add(answer.violation)

    def _random(self) -> None:
        budget = self.options.budget
        if not budget.seconds or self._has_ended:
            return
        begin = time.monotonic()
        for answers in in_order(self.workers, self._random_calls(begin)):
            for answer in answers:
                self._take_random(answer)
                if self._has_ended:
                    return
            self._have_patience()
            if time.monotonic() - begin >= budget.seconds:
                return

    def _random_calls(self, begin: float) -> Iterator[Call]:
        """Yield each batch's plans, then its programs; report progress before each call."""
        budget, drawn = self.options.budget, 0
        at_once = 1 if self.workers is None else parts.PROGRAMS_OF_A_CALL
        for batch in itertools.count():
            yield from self._plans(batch)
            programs = list(self._programs(batch))
            if budget.programs is not None:
                programs = programs[: budget.programs - drawn]
            for first in range(0, len(programs), at_once):
                share = (time.monotonic() - begin) / budget.seconds
                if budget.programs is not None:
                    share = drawn / budget.programs
                known = share if budget.seconds < ENDLESS or budget.programs is not None else None
                broken = len({rule for rule, _ in self.found.violations})
                self._tell("random", known, f"{self.num_random:,} programs, {broken} rules broken")
                together = programs[first : first + at_once]
                yield parts.programs, (self.sides, together)
                drawn += len(together)
            if budget.programs is not None and drawn >= budget.programs:
                return

    def _programs(self, batch: int) -> Iterator[Program]:
        """Yield a batch, with programs about hits inside a block if the subject declares them."""
        asked = (self.options.seed, batch, self.options.budget.max_steps)
        yield from random_programs(*asked)
        has_them = Feature.HITS_INSIDE_BLOCKS in self.can.features
        if has_them and self.options.policy.hits_inside_blocks:
            yield from inside_programs(*asked)

    def _plans(self, batch: int) -> Iterator[Call]:
        """Yield a few random models beside each batch of programs."""
        numbers = range(batch * PLANS, (batch + 1) * PLANS)
        plans = [random_plan(self.options.seed, number) for number in numbers]
        if Feature.PLANNING in self.can.features and self._is_wanted(plans[0].rules):
            yield parts.plans, (self.sides, [plan.name for plan in plans])

    def _take_random(self, answer: Answer) -> None:
        self._note_answer(answer)
        if answer.left_out is not None:
            return
        self.num_random += 1
        violation = answer.violation
        if violation is not None and self._is_wanted((violation.rule,)):
            if violation.is_example:
                self.found.add(violation)
            else:
                self._keep(violation)

    def _tell(self, phase: str, share: float | None, note: str) -> None:
        """Report the progress. Raises OutOfPatienceError when it is not worth continuing."""
        self._have_patience()
        self.progress(Reached(phase, share, note))

    def _have_patience(self) -> None:
        if self.lost_seconds >= watchdog.PATIENCE_SECONDS:
            raise OutOfPatienceError

    def _note_answer(self, answer: Answer) -> None:
        """Count situations, and the seconds of a failure that hangs.

        Raises OutOfPatienceError: without workers, this call would not have been made.
        """
        self._have_patience()
        self.situations.update(answer.situations)
        self.is_slow = answer.lost_seconds > 0
        self.lost_seconds += answer.lost_seconds

    @property
    def _has_ended(self) -> bool:
        """Whether the first violation has ended the run."""
        return self.options.fail_fast and bool(self.found.violations)

    def _is_wanted(self, rules: Sequence[str]) -> bool:
        return not rules or PROTOCOL in rules or any(map(self.options.is_wanted, rules))

    def _keep(self, violation: Violation) -> None:
        """Keep the first violation of each kind, shrunk while there is time."""
        is_first = violation.kind not in self.found.violations
        if is_first or not self.is_slow:
            self.found.add(violation)
        if is_first and not self.is_slow:  # each attempt to shrink it would take as long
            self.shrinker.keep(violation)
