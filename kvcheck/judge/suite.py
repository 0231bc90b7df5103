"""The suite: examples, then random programs; one verdict per rule."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvcheck.judge import parts
from kvcheck.judge.blame import Suspect, blamed
from kvcheck.judge.causes import Shrinker, ways_told
from kvcheck.judge.faults import Likeness, alike, by_likeness, known_of, likenesses
from kvcheck.judge.findings import DIRECTED
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import ENDLESS, Options, judged, run_of
from kvcheck.judge.outcome import Reached, Report
from kvcheck.judge.outcomes import neighbours
from kvcheck.judge.parts import Answer
from kvcheck.judge.sides import Find, Sides
from kvcheck.judge.state import State
from kvcheck.play import watchdog
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import PROTOCOL, Violation
from kvcheck.play.watchdog import OutOfPatienceError
from kvcheck.rules.directed import EXAMPLES, Example, find_example
from kvcheck.rules.random_plans import random_plan
from kvcheck.tasks import Call, Workers, in_order
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature, Implementation

BATCH = 100

UNSEEN = ("the order of the free queue", "cached keys and counts", "events against keys")
"""Rules that cannot be observed of a subject without Feature.SNAPSHOT."""

PLANS = 20
"""Random models to plan for per batch of random programs."""


class Suite:
    """One run of the suite. `progress` receives its progress, `save` the state to resume from.

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
        save: Callable[[State], None] = lambda state: None,
        find: Find | None = None,
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options = judged(options, subject)
        self.sides = Sides(subject, oracle, options, find)
        self.workers: Workers | None = None
        self.progress = progress
        self.save = save
        self.can = subject.capabilities
        self.situations: Counter[str] = Counter()
        self.found = Ledger()
        self.num_directed = self.num_random = self.num_drawn = 0
        self.lost_seconds, self.is_slow = 0.0, False
        sides = (subject, options.level, self.sides.compared)
        budget = options.budget
        self.shrinker = Shrinker(self.found, *sides, budget.shrink_seconds, budget.is_counted)
        self.state = State(run_of(subject, options))
        self.can_be_resumed = False  # only after the examples, which are not run again

    def run(self, state: State | None = None) -> Report:
        """Play the examples, then random programs until the budget is spent or Ctrl-C.

        `state`: where an earlier run stopped; only random programs remain. Raises
        InvalidArgumentError if the state is that of another run.
        """
        start, before = time.monotonic(), 0.0 if state is None else state.seconds
        interrupted = gave_up = False
        found: tuple[Likeness, ...] = ()
        try:
            if state is None:
                if self.options.budget.directed:
                    self._examples()
                self._note(0, start, before)
            else:
                self._restore(state)
            self._random(start, before)
            if self.found.more and not self._has_ended:
                self._tell("further ways", None, "in which rules are broken")
            if not self._has_ended:
                self.shrinker.more()
            found = self._looked_up()
        except KeyboardInterrupt:
            interrupted = True
        except OutOfPatienceError:
            gave_up = True
        if self.can_be_resumed:
            self.save(self.found.kept_in(self.state))
        ranked, violations, more = self._blamed(found)
        return Report(
            self.can.name,
            self.options,
            violations,
            self.num_directed,
            self.num_random,
            self.found.left_out,
            self.situations,
            before + time.monotonic() - start,
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
        )

    def _looked_up(self) -> tuple[Likeness, ...]:
        """Return the known mistakes that show the same findings."""
        raw = self.found.listed
        if not raw or self.oracle is None:
            return ()
        self._tell("looking up", None, "known mistakes that behave so")
        near, among = neighbours(self.found.evidence), known_of(self.options.oracle)
        return likenesses(raw, near, among, self.oracle, self.options)

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

    def _random(self, start: float, before: float) -> None:
        budget = self.options.budget
        if not budget.seconds or self._has_ended:
            return
        begin = time.monotonic()
        for drawn in in_order(self.workers, self._random_calls(begin)):
            for answer in drawn.answers:
                self._take_random(answer)
                if self._has_ended:
                    return
            self._have_patience()
            self.num_drawn += drawn.drawn
            if drawn.is_last:
                self._note(drawn.batch + 1, start, before)
            if time.monotonic() - begin >= budget.seconds:
                return

    def _random_calls(self, begin: float) -> Iterator[Call]:
        """Yield each batch's plans, then its programs; report progress before each call."""
        budget, drawn = self.options.budget, self.num_drawn
        at_once = 1 if self.workers is None else parts.PROGRAMS_OF_A_CALL
        for batch in itertools.count(self.state.batch):
            yield from self._plans(batch)
            programs = list(self._programs(batch))
            is_whole = budget.programs is None or drawn + len(programs) <= budget.programs
            if budget.programs is not None:
                programs = programs[: budget.programs - drawn]
            for call in parts.calls_of(self.sides, batch, programs, is_whole, at_once):
                share = (time.monotonic() - begin) / budget.seconds
                if budget.programs is not None:
                    share = drawn / budget.programs
                known = share if budget.seconds < ENDLESS or budget.programs is not None else None
                broken = len({rule for rule, _ in self.found.violations})
                self._tell("random", known, f"{self.num_random:,} programs, {broken} rules broken")
                yield call
                drawn += len(call[1][-1])
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
            yield parts.plans, (self.sides, batch, [plan.name for plan in plans])

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

    def _note(self, batch: int, start: float, before: float) -> None:
        """Note that a batch is done, so that a later run resumes behind it."""
        self.can_be_resumed = True
        self.state = replace(
            self.state,
            batch=batch,
            directed=self.num_directed,
            random=self.num_random,
            drawn=self.num_drawn,
            seconds=before + time.monotonic() - start,
            situations=dict(self.situations),
            left_out=dict(self.found.left_out),
            about=tuple(sorted(self.found.about)),
            evidence=tuple(self.found.evidence),
        )
        self.save(self.found.kept_in(self.state))

    def _restore(self, state: State) -> None:
        if dict(state.run) != dict(self.state.run):
            different = {
                name: value
                for name, value in state.run.items()
                if self.state.run.get(name) != value
            }
            raise InvalidArgumentError("resume", different, f"a state of {dict(self.state.run)}")
        self.state = state
        self.situations = Counter(state.situations)
        self._tell("trying again", None, "what was broken before")
        sides = (self.subject, self.options.level, self.sides.compared)
        for name in self.found.take_over(state, *sides):
            self._take(find_example(name), parts.example(self.sides, name))
        self.num_directed, self.num_random = state.directed, state.random
        self.num_drawn = state.drawn
        self.found.looked_at.update({DIRECTED} if state.directed else ())
        self.can_be_resumed = True

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
