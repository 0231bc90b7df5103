"""The suite: static vectors, then directed programs, then random ones; one verdict per rule."""

from __future__ import annotations

import fnmatch
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvcheck.judge.blame import Suspect, blamed
from kvcheck.judge.causes import Shrinker, ways_told
from kvcheck.judge.coverage import decided
from kvcheck.judge.faults import Likeness, alike, by_likeness, known_of, likenesses
from kvcheck.judge.findings import DIRECTED, VECTORS
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import ENDLESS, Options, judged, run_of
from kvcheck.judge.outcome import Reached, Report
from kvcheck.judge.outcomes import neighbours
from kvcheck.judge.random_programs import random_programs
from kvcheck.judge.state import State
from kvcheck.judge.static import StaticCount, StaticTier
from kvcheck.play import watchdog
from kvcheck.play.fit import directed_program, random_program
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import (
    HANG,
    PROTOCOL,
    Level,
    Violation,
    violations_along,
)
from kvcheck.play.watchdog import OutOfPatienceError
from kvcheck.rules.directed import EXAMPLES, Example, example_violation, find_example
from kvcheck.rules.random_plans import random_plan
from kvcheck.rules.scenarios import ALL_SCENARIOS
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import Feature, Implementation

BATCH = 100

UNSEEN = ("the order of the free queue", "cached keys and counts", "events against keys")
"""What nobody sees of a subject without Feature.SNAPSHOT."""

SLOW_SECONDS = 2.0
"""A failing program that takes longer hangs somewhere; others take milliseconds."""

PLANS = 20
"""Random models to plan for, beside each batch of random programs."""


class Suite:
    """One run of the suite. `progress` hears how far it is, `save` what is needed to go on."""

    def __init__(
        self,
        subject: Implementation,
        oracle: Implementation | None,
        options: Options,
        progress: Callable[[Reached], None] = lambda reached: None,
        save: Callable[[State], None] = lambda state: None,
    ) -> None:
        self.subject = subject
        self.oracle = oracle
        self.options = options = judged(options, subject)
        self.progress = progress
        self.save = save
        self.can = subject.capabilities
        self.hashes_matter = options.level is not Level.SAFETY
        self.situations: Counter[str] = Counter()
        self.found = Ledger()
        self.num_directed = self.num_random = 0
        self.static = StaticTier(subject, options)
        self.lost_seconds, self.is_slow = 0.0, False
        sides = (subject, options.level, self._compared)
        self.shrinker = Shrinker(self.found, *sides, options.budget.shrink_seconds)
        self.state = State(run_of(subject, options))
        self.can_be_resumed = False  # only after the directed programs, which are not run again

    def run(self, state: State | None = None) -> Report:
        """Vectors, directed programs, then random ones until the budget is spent or Ctrl-C.

        `state`: where an earlier run stopped; only random programs are still to come. Raises
        UnsupportedError at level identity for a subject without Feature.SNAPSHOT,
        InvalidArgumentError if the state is that of another run.
        """
        if self.options.level is Level.IDENTITY and Feature.SNAPSHOT not in self.can.features:
            raise UnsupportedError("snapshot, which level identity compares", self.can.name)
        start, before = time.monotonic(), 0.0 if state is None else state.seconds
        interrupted = gave_up = False
        found: tuple[Likeness, ...] = ()
        try:
            if state is None:
                self._static()
                if self.options.budget.directed:
                    self._directed()
                    self._examples()
                self._note(0, start, before)
            else:
                self._restore(state)
            self._random(start, before)
            if self.found.more:
                self._tell("further ways", None, "in which rules are broken")
            self.shrinker.more(self.oracle)
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
            self.static.count,
            ranked,
            self.found.in_doubt,
            self.found.shown_by,
            frozenset(self.found.looked_at),
            version=self.can.version,
            more=more,
        )

    def _looked_up(self) -> tuple[Likeness, ...]:
        """The known mistakes that behave as what was found."""
        raw = self.found.listed
        if not raw or self.oracle is None:
            return ()
        self._tell("looking up", None, "known mistakes that behave so")
        near, among = neighbours(self.found.evidence), known_of(self.options.oracle)
        return likenesses(raw, near, among, self.oracle, self.options)

    def _blamed(
        self, found: tuple[Likeness, ...]
    ) -> tuple[tuple[Suspect, ...], tuple[Violation, ...], Mapping[str, int]]:
        """The rules that are suspicious, the violations under theirs, and how many are not told."""
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

    def _static(self) -> None:
        """Recorded walks; what is found in them is made small beside the oracle."""

        def told(share: float, note: str) -> None:
            self._tell("static", share, note)

        begin = time.monotonic()
        for walk, parting in self.static.run(self._is_wanted, told):
            violation = None if parting is None else parting.violation
            if violation is not None and violation.name == HANG:
                self.lost_seconds += time.monotonic() - begin
            elif parting is not None and violation is not None:
                rule = violation.rule
                if violation.kind not in self.found.violations and self._is_wanted((rule,)):
                    self._tell("static", None, f"making a violation of {rule} smaller")
                    violation = self.shrinker.walked(parting, walk, self.oracle)
            if violation is not None and self._is_wanted((violation.rule,)):
                self.found.add(violation)
                self.found.walked.append((violation.kind, walk.manifest.name))
            begin = time.monotonic()
        self.found.about.update(self.static.about)
        self.found.looked_at.add(VECTORS)

    def _directed(self) -> None:
        chosen = [program for program in ALL_SCENARIOS if self._is_wanted(program.rules)]
        behind: list[Violation] = []
        for number, program in enumerate(chosen):
            self._tell("directed", number / len(chosen), ", ".join(program.rules))
            fitting, lacks = directed_program(
                program, self.can, self.options.policy, hashes_matter=self.hashes_matter
            )
            if lacks:
                self.found.left_out[program.name] = tuple(lacks)
                continue
            try:
                found = self._verdicts(fitting, goes_on=True)
            except LeftOut as reason:
                self.found.leave_out(program.name, reason)
                continue
            violation = found[0] if found else None
            behind += found[1:]
            self.num_directed += 1
            is_alone = self.options.self_checks_only
            rules = decided(program.rules) if is_alone else program.rules
            self.found.note(fitting.name, rules, violation)
            if violation is not None:
                self._keep(violation)
        for violation in sorted(behind, key=lambda each: len(each.operations)):
            self.shrinker.keep_if_alone(violation)

    def _examples(self) -> None:
        """What is asked without a program; there is nothing to make smaller."""
        level = self.options.level
        chosen = [e for e in EXAMPLES if self._is_wanted(e.rules) and e.binds_at(level)]
        for number, example in enumerate(chosen):
            self._tell("examples", number / len(chosen), ", ".join(example.rules))
            self._try(example)
        self.found.looked_at.add(DIRECTED)

    def _try(self, example: Example) -> None:
        begin = time.monotonic()
        try:
            violation = example_violation(
                example, self.subject, self.options.policy, self._compared, self.options.level
            )
        except LeftOut as reason:
            self.found.leave_out(example.name, reason)
            return
        self._note_loss(violation, begin)
        self.num_directed += 1
        self.found.note(example.name, example.rules, violation)
        if violation is not None:
            self.found.add(violation)

    def _random(self, start: float, before: float) -> None:
        budget = self.options.budget
        begin = time.monotonic()
        for batch in itertools.count(self.state.batch):
            if budget.seconds:
                self._plans(batch)
            for program in self._programs(batch):
                spent = time.monotonic() - begin
                if spent >= budget.seconds:
                    return
                share = None if budget.seconds >= ENDLESS else spent / budget.seconds
                broken = len({rule for rule, _ in self.found.violations})
                self._tell("random", share, f"{self.num_random:,} programs, {broken} rules broken")
                self._draw(program)
            self._note(batch + 1, start, before)

    def _programs(self, batch: int) -> Iterator[Program]:
        """A batch; about hits inside a block, too, if the subject has and declares them."""
        asked = (self.options.seed, batch, self.options.budget.max_steps)
        yield from random_programs(*asked)
        has_them = Feature.HITS_INSIDE_BLOCKS in self.can.features
        if has_them and self.options.policy.hits_inside_blocks:
            yield from inside_programs(*asked)

    @property
    def _compared(self) -> Implementation | None:
        """The oracle, at a level that compares, unless it is the subject itself."""
        is_alone = self.options.self_checks_only or self.options.level is Level.SAFETY
        return None if is_alone else self.oracle

    def _plans(self, batch: int) -> None:
        """A few random models beside each batch of programs."""
        if Feature.PLANNING not in self.can.features:
            return
        for number in range(batch * PLANS, (batch + 1) * PLANS):
            example = random_plan(self.options.seed, number)
            if not self._is_wanted(example.rules):
                return
            try:
                violation = example_violation(
                    example, self.subject, self.options.policy, self._compared, self.options.level
                )
            except LeftOut:
                continue
            self.num_random += 1
            if violation is not None and self._is_wanted((violation.rule,)):
                self.found.add(violation)

    def _draw(self, program: Program) -> None:
        asked = (program, self.can, self.options.policy)
        fitting = random_program(*asked, hashes_matter=self.hashes_matter, oracle=self.oracle)
        if fitting is None:
            return
        try:
            violation = self._verdict(fitting)
        except LeftOut:
            return
        self.num_random += 1
        if violation is not None and self._is_wanted((violation.rule,)):
            self._keep(violation)

    def _note(self, batch: int, start: float, before: float) -> None:
        """A whole batch is done: what a later run goes on from."""
        self.can_be_resumed = True
        self.state = replace(
            self.state,
            batch=batch,
            directed=self.num_directed,
            random=self.num_random,
            seconds=before + time.monotonic() - start,
            situations=dict(self.situations),
            left_out=dict(self.found.left_out),
            about=tuple(sorted(self.found.about)),
            evidence=tuple(self.found.evidence),
            static=self.static.count.to_json(),
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
        self.static.count = StaticCount.from_json(state.static)
        self._tell("trying again", None, "what was broken before")
        sides = (self.subject, self.options.level, self._compared)
        for name in self.found.take_over(state, *sides):
            self._try(find_example(name))
        self.num_directed, self.num_random = state.directed, state.random
        self.found.looked_at.update({DIRECTED} if state.directed else ())
        self.can_be_resumed = True

    def _tell(self, phase: str, share: float | None, note: str) -> None:
        """Say how far the run is. Raises OutOfPatienceError when it is not worth going on."""
        if self.lost_seconds >= watchdog.PATIENCE_SECONDS:
            raise OutOfPatienceError
        self.progress(Reached(phase, share, note))

    def _verdict(self, program: Program) -> Violation | None:
        return next(iter(self._verdicts(program, goes_on=False)), None)

    def _verdicts(self, program: Program, *, goes_on: bool) -> list[Violation]:
        begin = time.monotonic()
        sides = (self.subject, self.options.level, self._compared)
        found = violations_along(program, *sides, self.situations, goes_on=goes_on)
        self._note_loss(found[0] if found else None, begin)
        return found

    def _note_loss(self, violation: Violation | None, begin: float) -> None:
        """Seconds that a failure took, if they are more than any that does not hang takes."""
        spent = time.monotonic() - begin
        self.is_slow = violation is not None and spent > SLOW_SECONDS
        if self.is_slow:
            self.lost_seconds += spent

    def _is_wanted(self, rules: Sequence[str]) -> bool:
        pairs = itertools.product(rules, self.options.rules)
        return not rules or PROTOCOL in rules or any(itertools.starmap(fnmatch.fnmatchcase, pairs))

    def _keep(self, violation: Violation) -> None:
        """The first of each kind, made small as long as there is time for that."""
        is_first = violation.kind not in self.found.violations
        if is_first or not self.is_slow:
            self.found.add(violation)
        if is_first and not self.is_slow:  # each attempt to make it smaller would take as long
            self.shrinker.keep(violation)
