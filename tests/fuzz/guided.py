"""Drawing stories for kvfast beside kvref, led by the branches of the core that they reach.

    python -m tests.fuzz.guided --seconds 600 --seed 7 [--build compiled] [--keep FILE]

A new story is drawn, or is a story of the corpus with steps of another one, fewer steps or other
options. One that reaches what none did before joins the corpus, for this run. A difference is made
smaller and printed as a test to paste, and the exit code is 1. The compiled build is blind: its
stories are drawn the same way, without being led, and its reference is the uncompiled one.
`--keep` writes the corpus: as few stories as reach all of it, and as little of each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeAlias

import coverage

import kvref
from kvcheck.judge.pasted import program_test
from kvcheck.judge.production import LongDraw, production_config, production_program
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw, program_of_steps, random_program_of
from kvcheck.play.shrink import shrink
from kvcheck.play.steps import Arrive, Program
from kvfast._implementation import FastImplementation
from kvspec.interface import Implementation
from tests.fuzz.corpus import differs, read, write, written
from tests.source import ROOT

CORE = ROOT / "kvfast" / "_core"
MAX_STEPS = 40
SHRINK_SECONDS = 10.0
"""Seconds to make one story smaller."""

Arcs: TypeAlias = frozenset[tuple[str, int, int]]


class Reach:
    """Which jumps from line to line of the uncompiled core a story makes."""

    def __init__(self) -> None:
        self.subject = FastImplementation("uncompiled")
        self.meter = coverage.Coverage(
            data_file=None, branch=True, include=[str(CORE / "*")], config_file=False
        )

    def of(self, story: Program) -> tuple[Arcs, str | None]:
        """The jumps, and the difference from the reference if there is one."""
        self.meter.erase()
        self.meter.start()
        try:
            found = differs(story, self.subject)
        finally:
            self.meter.stop()
        return self._arcs(), found

    def _arcs(self) -> Arcs:
        data = self.meter.get_data()
        return frozenset(
            (Path(file).name, *arc)
            for file in data.measured_files()
            for arc in data.arcs(file) or ()
        )

    def branches(self, stories: Sequence[Program]) -> tuple[int, int, dict[str, list[int]]]:
        """Branches taken by all of them together, all branches, and lines that miss one."""
        self.meter.erase()
        self.meter.start()
        for story in stories:
            differs(story, self.subject)
        self.meter.stop()
        taken = total = 0
        missing: dict[str, list[int]] = {}
        for file in sorted(CORE.glob("[!_]*.py")):
            stats = self.meter.branch_stats(str(file))
            total += sum(exits for exits, _ in stats.values())
            taken += sum(done for _, done in stats.values())
            missing[file.name] = [line for line, (exits, done) in stats.items() if done < exits]
        return taken, total, missing


class Drawing:
    """Stories without end, of one seed; `corpus` is what mutants are made from."""

    def __init__(self, seed: int, corpus: Sequence[Program]) -> None:
        self.random = Random(seed)
        self.corpus = list(corpus)

    def story(self) -> Program:
        """A new one, or a change of an old one."""
        roll, random = self.random.random(), self.random
        if roll < 0.15:
            config = production_config(random) if roll < 0.03 else random_config(random)
            draw = LongDraw(random, config) if roll < 0.03 else Draw(random, config)
            return program_of_steps(draw, random.choice((4, 8)))
        if roll < 0.55 and self.corpus:
            return self.changed(self.corpus)
        if roll < 0.65:
            return production_program(self.random, MAX_STEPS)
        return random_program_of(self.random, MAX_STEPS)

    def changed(self, programs: Sequence[Program]) -> Program:
        """A program with steps of another one, or with its own again, or with other options."""
        random = self.random
        one, other = random.choice(programs), random.choice(programs)
        if random.random() < 0.3:
            fresh = random_config(random, hybrid=random.random() < 0.3)
            return fitting(replace(one, config=random.choice((fresh, other.config))))
        cut, start = random.randint(0, len(one.steps)), random.randrange(len(other.steps) + 1)
        middle = other.steps[start : start + random.choice((1, 2, 5, 20))]
        kept = one.steps[cut + random.choice((0, 0, 1, 3)) :]
        return fitting(replace(one, steps=(*one.steps[:cut], *middle, *kept)[: 2 * MAX_STEPS]))


def fitting(program: Program) -> Program:
    """The program with prompts that its model takes."""
    longest = program.config.max_model_len_tokens - 1
    steps = (
        replace(step, prompt=step.prompt[:longest]) if isinstance(step, Arrive) else step
        for step in program.steps
    )
    return replace(program, steps=tuple(steps))


def led(
    seed: int, seconds: float, corpus: Sequence[Program]
) -> Iterator[tuple[Program, Arcs, str]]:
    """Every story that reached something new, with all it reached, and its difference or ''."""
    reach, seen = Reach(), set[tuple[str, int, int]]()
    drawing = Drawing(seed, corpus)
    waiting = list(corpus)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        story = waiting.pop() if waiting else drawing.story()
        arcs, difference = reach.of(story)
        if difference or not arcs <= seen:
            if story not in drawing.corpus:
                drawing.corpus.append(story)
            seen |= arcs
            yield story, arcs, difference or ""


def blind(seed: int, seconds: float, corpus: Sequence[Program]) -> Iterator[tuple[Program, str]]:
    """Every story of the compiled build that is not as the uncompiled one's."""
    compiled, uncompiled = FastImplementation("compiled"), FastImplementation("uncompiled")
    drawing = Drawing(seed, corpus)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        story = drawing.story()
        difference = differs(story, compiled, uncompiled)
        if difference:
            yield story, difference


def fewest(found: Sequence[tuple[Program, Arcs]]) -> list[tuple[Program, Arcs]]:
    """As few as a greedy choice takes to reach all; of equal ones the shortest."""
    left = frozenset[tuple[str, int, int]]().union(*(arcs for _, arcs in found))
    chosen = []
    while left:
        best = max(found, key=lambda each: (len(each[1] & left), -len(written(each[0]))))
        chosen.append(best)
        left -= best[1]
    return chosen


def smaller(found: Sequence[tuple[Program, Arcs]]) -> list[Program]:
    """Each without what the others reach, too."""
    reach = Reach()
    kept = dict(enumerate(found))
    for number, (story, arcs) in enumerate(found):
        others = [each for place, (_, each) in kept.items() if place != number]
        own = arcs - frozenset().union(*others)
        if not own:
            del kept[number]
            continue

        def still(one: Program, own: Arcs = own) -> bool:
            reached, difference = reach.of(one)
            return difference is None and own <= reached

        story = shrink(story, still, seconds=SHRINK_SECONDS)
        kept[number] = story, reach.of(story)[0]
    return [story for story, _ in kept.values()]


def told(
    story: Program, difference: str, subject: Implementation, reference: Implementation
) -> str:
    """A difference, made smaller, ready to paste."""
    wrong = shrink(
        story, lambda one: differs(one, subject, reference) is not None, seconds=6 * SHRINK_SECONDS
    )
    names = [one.capabilities.name for one in (subject, reference)]
    rule = difference.partition("KV-")[2].partition(":")[0].split()[:1]
    title = f"KV-{rule[0]}" if rule else "a difference"
    return f"{difference}\n\n{program_test(title, wrong, names[0], names[1], 'identity')}"


def main(given: Sequence[str] | None = None) -> int:
    """The command; 1 if the two sides part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--build", choices=("compiled", "uncompiled"), default="uncompiled")
    parser.add_argument("--keep", type=Path, help="write the corpus to this file")
    options = parser.parse_args(given)
    corpus = read()
    print(f"seed {options.seed}, {options.build}, {len(corpus)} stories", flush=True)
    if options.build == "compiled":
        sides = FastImplementation("compiled"), FastImplementation("uncompiled")
        for story, difference in blind(options.seed, options.seconds, corpus):
            print(told(story, difference, *sides))
            return 1
        return 0
    found: list[tuple[Program, Arcs]] = []
    for story, arcs, difference in led(options.seed, options.seconds, corpus):
        if difference:
            print(told(story, difference, FastImplementation("uncompiled"), kvref.implementation()))
            return 1
        found.append((story, arcs))
        print(f"{len(found)} stories, {len(arcs)} jumps: {written(story)[:100]}", flush=True)
    if options.keep:
        stories = smaller(fewest(found))
        head = [f"Made by `python -m tests.fuzz.guided --seed {options.seed} --keep FILE`."]
        write(stories, head, options.keep)
        found = [(story, frozenset()) for story in stories]
    taken, total, missing = Reach().branches([story for story, _ in found])
    print(f"{len(found)} stories, {taken} of {total} branches")
    for name, lines in missing.items():
        if lines:
            print(f"  {name}: {', '.join(map(str, lines))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
