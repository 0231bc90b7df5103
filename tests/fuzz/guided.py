"""Programs for kvfast beside kvref, led by the branches of the core that they reach.

    python -m tests.fuzz.guided --seconds 600 --seed 7 [--build compiled] [--keep FILE]

A program is drawn, or is one of the corpus with steps of another one, fewer steps or other options.
One that reaches what none did before joins the corpus, for this run. A difference is printed as a
test to paste, made smaller, and the exit code is 1. The compiled build is drawn for without being
led. `--keep` writes the corpus: as few programs as reach all of it, and as little of each.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import coverage

import kvref
from kvcheck.judge.pasted import program_test, source
from kvcheck.judge.production import production_program
from kvcheck.play import steps
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw, program_of_steps, random_program_of
from kvcheck.play.runner import Runner
from kvcheck.play.shrink import shrink
from kvcheck.play.steps import Program
from kvfast._implementation import FastImplementation
from kvspec import config, specs
from kvspec.interface import Implementation
from tests.fuzz.core import fitting
from tests.source import ROOT

FILE = Path(__file__).parent / "corpus.txt"
MAX_STEPS = 40
SHRINK_SECONDS = 10.0

Arcs: TypeAlias = frozenset[tuple[str, int, int]]


def differs(program: Program, subject: Implementation) -> str | None:
    """Return where the subject and the reference part; what the subject runs into is one, too."""
    try:
        runner = Runner(program, subject, kvref.implementation(), audit=False)
        runner.checks = [CompareCheck(exact_ids=True), EventCheck()]
        perform(runner, program.steps)
    except Exception as error:  # whatever it is, it is the subject's
        return f"{type(error).__name__}: {error}"
    return None


def written(program: object) -> str:
    """Write a program, or a configuration, on one line."""
    return re.sub(r"\s*\n\s*", " ", source(program))


def read() -> list[Program]:
    """Read the corpus: one program a line, as Python."""
    modules = (steps, config, specs)
    names: dict[str, Any] = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
    }
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [eval(line, {**names}) for line in lines if line and line[0] != "#"]


class Reach:
    """Finds the jumps from line to line of the core that a program makes."""

    def __init__(self, build: str) -> None:
        self.subject = FastImplementation(build)
        core = str(ROOT / "kvfast" / "_core" / "*")
        self.meter = coverage.Coverage(None, branch=True, include=[core], config_file=False)

    def of(self, program: Program) -> tuple[Arcs, str | None]:
        """Return the jumps, none of compiled code, and the difference from the reference."""
        self.meter.erase()
        self.meter.start()
        try:
            found = differs(program, self.subject)
        finally:
            self.meter.stop()
        data = self.meter.get_data()
        files = data.measured_files()
        arcs = ((Path(file).name, *arc) for file in files for arc in data.arcs(file) or ())
        return frozenset(arcs), found


def drawn(random: Random, corpus: Sequence[Program]) -> Program:
    """Draw a program, or change one of the corpus."""
    roll = random.random()
    if roll < 0.15:
        return program_of_steps(Draw(random, random_config(random)), random.choice((4, 8)))
    if roll < 0.25 or not corpus:
        return production_program(random, MAX_STEPS)
    if roll < 0.6:
        return random_program_of(random, MAX_STEPS)
    one, other = random.choice(corpus), random.choice(corpus)
    if random.random() < 0.3:
        fresh = random_config(random, hybrid=random.random() < 0.3)
        return fitting(replace(one, config=random.choice((fresh, other.config))))
    cut, start = random.randint(0, len(one.steps)), random.randrange(len(other.steps) + 1)
    middle = other.steps[start : start + random.choice((1, 2, 5, 20))]
    kept = one.steps[cut + random.choice((0, 0, 1, 3)) :]
    return fitting(replace(one, steps=(*one.steps[:cut], *middle, *kept)[: 2 * MAX_STEPS]))


def led(
    reach: Reach, random: Random, seconds: float, corpus: Sequence[Program]
) -> Iterator[tuple[Program, Arcs, str | None]]:
    """Yield every program that reached something new, with all it reached, or differs."""
    seen, found, waiting = set[tuple[str, int, int]](), list(corpus), list(corpus)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        program = waiting.pop() if waiting else drawn(random, found)
        arcs, difference = reach.of(program)
        if difference or not arcs <= seen:
            found += [program] * (program not in found)
            seen |= arcs
            yield program, arcs, difference


def smallest(reach: Reach, found: Sequence[tuple[Program, Arcs]]) -> Iterator[Program]:
    """Yield as few programs as a greedy choice takes to reach all, each without what others do."""
    left = frozenset[tuple[str, int, int]]().union(*(arcs for _, arcs in found))
    while left:
        program, arcs = max(found, key=lambda each: (len(each[1] & left), -len(written(each[0]))))
        own = arcs & left

        def still(one: Program, own: Arcs = own) -> bool:
            reached, difference = reach.of(one)
            return difference is None and own <= reached

        yield shrink(program, still, seconds=SHRINK_SECONDS)
        left -= own


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; 1 if the two sides part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--build", choices=("compiled", "uncompiled"), default="uncompiled")
    parser.add_argument("--keep", type=Path, help="write the corpus to this file")
    options = parser.parse_args(given)
    reach, corpus = Reach(options.build), read()
    print(f"seed {options.seed}, {options.build}, {len(corpus)} programs", flush=True)
    found: list[tuple[Program, Arcs]] = []
    for program, arcs, difference in led(reach, Random(options.seed), options.seconds, corpus):
        if difference:
            print(told(program, difference, reach.subject))
            return 1
        found.append((program, arcs))
        print(f"{len(found)} programs, {len(arcs)} jumps: {written(program)[:100]}", flush=True)
    if options.keep:
        lines = map(written, smallest(reach, found))
        made = f"# Made by `python -m tests.fuzz.guided --seed {options.seed} --keep FILE`."
        options.keep.write_text("\n".join((made, *lines, "")), encoding="utf-8")
    return 0


def told(program: Program, difference: str, subject: Implementation) -> str:
    """Return a difference as a test to paste, made smaller."""
    wrong = shrink(program, lambda one: differs(one, subject) is not None, seconds=SHRINK_SECONDS)
    rule = difference.partition("KV-")[2].partition(":")[0].split()[:1]
    title = f"KV-{rule[0]}" if rule else "a difference"
    name = subject.capabilities.name
    return f"{difference}\n\n{program_test(title, wrong, name, 'kvref', 'identity')}"


if __name__ == "__main__":
    sys.exit(main())
