"""Fuzzing kvfast's core: programs of the one generator, with hostile calls between their steps.

    python -m tests.fuzz.core --seconds 120 --seed 1

After a step the manager is cloned, and the clone gets a burst of calls (`tests.fuzz.burst`).
Stories are played in child processes, so one that ends its process is found, too; a seed gives the
same stories. The first finding ends the run with exit code 1; `--story 17` plays that story alone.
`.ci/sanitize` runs it with the sanitizers, which see what only harms memory.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from kvcheck.play.performing import perform
from kvcheck.play.random_programs import Draw, program_of_steps
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.steps import Arrive, Program, Step
from kvfast._implementation import FastImplementation
from kvspec.errors import InvariantViolation
from tests.device.mistakes import planted
from tests.fuzz.burst import Burst, Finding, described
from tests.fuzz.drawing import draw_config

MEMORY_BYTES = 8 << 30
PLANTED = {one.id: one for one in planted(Path(__file__).with_name("planted.diff"))}
CHUNK = 100
"""Stories of one process."""
SUMMARY = re.compile(r"SUMMARY: (.*)|runtime error: (.*)")


def program_of(random: Random) -> Program:
    """Draw single calls, or whole steps, under a configuration that kvfast accepts."""
    config = draw_config(random)
    draw = Draw(random, config)
    steps: list[Step] = [draw.arrival() for _ in range(3)]
    while len(steps) < 24:
        steps += draw.habit()
    drawn = program_of_steps(draw, 4).steps if random.random() < 0.3 else tuple(steps)
    return fitting(Program(config, drawn))


def fitting(program: Program) -> Program:
    """Return the program with prompts that its model takes."""
    longest = program.config.max_model_len_tokens - 1
    steps = (
        replace(step, prompt=step.prompt[:longest]) if isinstance(step, Arrive) else step
        for step in program.steps
    )
    return replace(program, steps=tuple(steps))


class Hostile(Check):
    """A check that makes bursts on clones; raises Finding."""

    def __init__(self, random: Random, patience: float) -> None:
        self.random, self.patience = random, patience
        self.num_calls = 0

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Allow each call of the program its seconds."""
        signal.setitimer(signal.ITIMER_VIRTUAL, self.patience)

    def after_step(self, runner: Runner) -> None:
        if self.random.random() < 0.4:
            burst = Burst(self.random, runner)
            for _ in range(self.random.choice((1, 4, 12))):
                signal.setitimer(signal.ITIMER_VIRTUAL, self.patience)
                self.num_calls += 1
                burst.make()
            burst.end()


class Fuzzer:
    """Stories of one seed on one build. `plant` names a hole: a test of this fuzzer."""

    def __init__(
        self, build: str, seed: str, *, patience: float = 20.0, plant: str | None = None
    ) -> None:
        self.implementation = FastImplementation(build)
        self.seed, self.patience = seed, patience
        self.num_calls = 0
        if plant is not None:
            self.hole = PLANTED[plant].make()
            self.hole.__enter__()

    def play(self, number: int) -> Finding | None:
        random = Random(f"{self.seed}/{number}")
        program = program_of(random)
        hostile = Hostile(random, self.patience)
        runner = Runner(program, self.implementation, checks=[hostile])
        try:
            perform(runner, program.steps)
        except Finding as found:
            return found
        except InvariantViolation as violation:
            return Finding(f"invariant {violation.invariant}", str(violation))
        except Exception as error:
            return Finding(*described(error))
        self.num_calls += hostile.num_calls
        return None

    def findings(self, numbers: range, until: float) -> Iterator[tuple[int, Finding]]:
        """Play stories in processes of their own; yield each that found something."""
        first = numbers.start
        while first < numbers.stop and time.monotonic() < until:
            number, found = self._chunk(range(first, min(first + CHUNK, numbers.stop)), until)
            first = number + 1
            if found is not None:
                yield number, found

    def _chunk(self, numbers: range, until: float) -> tuple[int, Finding | None]:
        """Return the last story that a child played, and its finding there."""
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                self._be_child(numbers, until, said, errors)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said.seek(0)
            errors.seek(0)
            told, last = errors.read(), said.read()
        number, _, finding = last.rpartition("story ")[2].partition("\n")
        key, _, text = finding.partition("\n")
        self.num_calls += int(text) if key == "calls" else 0
        if status == -signal.SIGVTALRM:
            return int(number), Finding("hang", f"a call does not end\n{told}")
        if status:
            return int(number), Finding(crash(status, told), told[-6000:])
        return int(number), Finding(key, text) if key not in ("", "calls") else None

    def _be_child(self, numbers: range, until: float, said: Any, errors: Any) -> None:
        os.dup2(errors.fileno(), 2)
        faulthandler.enable(errors)
        if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # it reserves all there is
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            self.num_calls = 0
            for number in numbers:
                print(f"story {number}", file=said, flush=True)
                found = self.play(number)
                if found is not None:
                    print(f"{found.key}\n{found.text}", file=said, flush=True)
                    os._exit(0)
                if time.monotonic() > until:
                    break
            print(f"calls\n{self.num_calls}", file=said, flush=True)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(70)


def crash(status: int, said: str) -> str:
    found = SUMMARY.search(said)
    if found is None:
        return f"ended with {status}"
    return re.sub(r"0x[0-9a-f]+|\(.*?\)|\S*/", "", found[1] or found[2])


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", default="compiled", choices=("compiled", "uncompiled"))
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--stories", type=int, default=1 << 40, help="at most so many")
    parser.add_argument("--seed", default=str(time.time_ns() % 10**6), help="any text")
    parser.add_argument("--story", type=int, help="play the story of this number alone")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds for one call")
    parser.add_argument("--plant", choices=tuple(PLANTED), help="break the uncompiled build first")
    options = parser.parse_args(given)
    fuzzer = Fuzzer(options.build, options.seed, patience=options.patience, plant=options.plant)
    print(f"seed {options.seed}, {options.build}")
    first = options.story or 0
    numbers = range(first, first + 1 if options.story is not None else options.stories)
    number = -1
    for number, found in fuzzer.findings(numbers, time.monotonic() + options.seconds):
        print(f"=== {found.key}\n{found.text}\n--seed {options.seed} --story {number} repeats it")
        return 1
    print(f"{fuzzer.num_calls} hostile calls, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
