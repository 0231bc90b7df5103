"""Mutants against tests: pytest collects once, and each mutant runs in a process forked from that.

A mutant dies at the first test that fails. It lives if all tests that run its line pass, or as many
of them, in turn from each file, as fit into its time.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings

from tests.mutation.coverage_map import Reach
from tests.mutation.generate import Mutant
from tests.mutation.swap import NotSwappedError, put_in_place

T = TypeVar("T")
PROFILE = "mutation"
MEMORY_BYTES = 3 << 30
LIVES, DIES, CANNOT = 0, 1, 2
"""Exit codes of the process of a mutant."""


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    SAME = "same"  # the change compiles to the same code


@dataclass(frozen=True)
class Result:
    """`killer`: the test that failed. `tried`: how many tests ran."""

    name: str
    outcome: Outcome
    killer: str | None = None
    tried: int = 0


def pytest_arguments(tests: Iterable[str], keyword: str) -> list[str]:
    """Quiet, nothing written, and failures of Hypothesis not made small."""
    settings.register_profile(
        PROFILE,
        derandomize=True,
        deadline=None,
        max_examples=100,
        phases=(Phase.explicit, Phase.generate),
    )
    selected = ["-k", keyword] if keyword else []
    quiet = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:xdist"]
    quiet += ["--assert=plain"]  # nobody reads why an assertion failed
    return [*quiet, f"--hypothesis-profile={PROFILE}", *selected, *tests]


class Judging:
    """A plugin of pytest that runs no test itself, but forks a process for each mutant.

    `reach`: which tests reach a mutant, the only ones that are tried; without it, all are.
    `budget_s`: what the tests of one mutant may take together. `killers`: tests that killed other
    mutants of a function; they are tried first. `finished` is told each result.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        finished: Callable[[Result], None],
        *,
        reach: Reach | None = None,
        jobs: int = 1,
        budget_s: float = 10.0,
        killers: dict[str, list[str]] | None = None,
    ) -> None:
        self.waiting = deque(mutants)
        self.reach = reach
        self.finished = finished
        self.jobs = jobs
        self.budget_s = budget_s
        self.killers: defaultdict[str, list[str]] = defaultdict(list, killers or {})
        self.items: dict[str, pytest.Item] = {}
        self.under_way: dict[int, tuple[Mutant, int]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of the tests: the mutants."""
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()  # what is there is not looked at again, and so stays shared by all processes
        while self.waiting or self.under_way:
            while self.waiting and len(self.under_way) < self.jobs:
                self._start(self.waiting.popleft(), session)
            self._wait_for_one()
        return True

    def tests_for(self, mutant: Mutant) -> list[str]:
        """What is tried, in this order."""
        first = self.killers[f"{mutant.path}:{mutant.function}"]
        if self.reach is None:
            rest = [test for test in self.items if test not in first]
            return [*(test for test in first if test in self.items), *rest]
        seconds = self.reach.seconds
        reaching = self.reach.of(mutant)
        chosen = [test for test in first if test in reaching]
        left_s = self.budget_s - sum(seconds.get(test, 0.0) for test in chosen)
        for test in _in_turn(reaching - set(chosen), seconds):
            left_s -= seconds.get(test, 0.0)
            if left_s < 0:
                break
            chosen.append(test)
        return [test for test in chosen if test in self.items]

    def _start(self, mutant: Mutant, session: pytest.Session) -> None:
        tests = self.tests_for(mutant)
        reading, writing = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _be_the_mutant(mutant, [self.items[test] for test in tests], session, writing, self)
        os.close(writing)
        self.under_way[pid] = (mutant, reading)

    def _wait_for_one(self) -> None:
        pid, status = os.wait()
        mutant, reading = self.under_way.pop(pid)
        with os.fdopen(reading) as pipe:
            told = pipe.read().split("\n")
        tried = [line for line in told if line]
        last = tried[-1] if tried else None
        if os.WIFSIGNALED(status):
            by_timer = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL)
            outcome = Outcome.TIMEOUT if by_timer else Outcome.KILLED
        else:
            code = os.WEXITSTATUS(status)
            outcome = {LIVES: Outcome.SURVIVED, CANNOT: Outcome.SAME}.get(code, Outcome.KILLED)
        dead = outcome in (Outcome.KILLED, Outcome.TIMEOUT)
        if dead and last is not None:
            known = self.killers[f"{mutant.path}:{mutant.function}"]
            if last in known:
                known.remove(last)
            known.insert(0, last)
        self.finished(Result(mutant.name, outcome, last if dead else None, len(tried)))


def _in_turn(tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The fastest of each file, then the second of each: tests of one file see the same things."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (seconds.get(test, 0.0), test)):
        by_file[test.partition("::")[0]].append(test)
    rounds = zip_longest(*by_file.values())
    return [test for found in rounds for test in found if test is not None]


def _be_the_mutant(
    mutant: Mutant,
    items: Sequence[pytest.Item],
    session: pytest.Session,
    writing: int,
    judging: Judging,
) -> None:
    """In the forked process: run the tests, end at the first failure."""
    code = 3
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        try:
            put_in_place(mutant.path, mutant.function, mutant.source)
        except NotSwappedError:
            code = CANNOT
            return
        session.config.pluginmanager.register(EndsAtAFailure())
        session.config.pluginmanager.unregister(name="terminalreporter")
        seconds = judging.reach.seconds if judging.reach is not None else {}
        end_s = time.process_time() + 2 * judging.budget_s + 5.0
        for item, following in zip(items, [*items[1:], None], strict=True):
            if time.process_time() > end_s:
                break
            os.write(writing, f"{item.nodeid}\n".encode())
            signal.setitimer(signal.ITIMER_PROF, 5.0 + 10.0 * seconds.get(item.nodeid, 3.0))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        code = LIVES
    finally:
        os._exit(code)


class EndsAtAFailure:
    """A plugin of pytest that ends the process where a test fails; nobody reads a report of it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> pytest.TestReport | None:
        """Asked after set-up, test and tear-down."""
        no_failures = (pytest.skip.Exception, pytest.xfail.Exception)
        if call.excinfo is not None and not call.excinfo.errisinstance(no_failures):
            os._exit(DIES)
        return None


def in_a_fork(work: Callable[[], T]) -> T:
    """What `work` answers, done in a process of its own, which takes with it what tests leave."""
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=lambda: writing.send(work()))
    process.start()
    writing.close()
    answer: T = reading.recv()  # EOFError if the process ended without an answer
    process.join()
    return answer


def as_json(result: Result) -> str:
    """One line."""
    return json.dumps(asdict(result), ensure_ascii=False)


def from_json(line: str) -> Result:
    """What `as_json` wrote."""
    members: dict[str, Any] = json.loads(line)
    return Result(**{**members, "outcome": Outcome(members["outcome"])})
