"""kvref and kvfast side by side at the sizes of production: single calls and whole steps.

    python -m tests.lockstep.production --operations 1000000 --seed 3 [--build uncompiled]

draws until so many operations were compared, each with answers, events, statistics and the whole
state. A difference is made smaller, printed as a test to paste, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import kvref
from kvcheck.judge.pasted import program_test
from kvcheck.judge.production import LongDraw, production_config, production_programs
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.shrink import shrink
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.rules.random_batches import Engine
from kvfast._implementation import FastImplementation
from kvspec.batched import StepPlan
from kvspec.interface import Implementation
from kvspec.sequential import SequentialManager, batched_of

MAX_STEPS = 40
STEPS = 8
"""Of an engine."""
SEED = 5
"""Of what CI compares."""
SHRINK_SECONDS = 120.0


def compared(program: Program, subject: Implementation, *, audit: bool = False) -> int:
    """Run a program on both; the number of operations. Raises InvariantViolation."""
    runner = Runner(program, subject, kvref.implementation(), audit=audit)
    checks: list[Check] = [CompareCheck(exact_ids=True), EventCheck()]
    runner.checks = checks
    perform(runner, program.steps)
    return len(runner.operations)


class LongEngine(Engine):
    """Whole steps of an engine at the sizes of production, without illegal plans.

    Comparing takes longer than stepping: what is cached of 6 requests or of 80, and rarely.
    """

    def __init__(self, sides: Any, random: Random) -> None:
        config = production_config(random)
        super().__init__(config, sides, random)
        self.draw = LongDraw(random, config)
        self.most_requests = 0
        self.max_requests = random.choice((6, 6, 80))
        for _ in range(random.choice((0, 14, 62)) if self.max_requests == 80 else 0):
            self.arrive()

    def prompt(self) -> list[int]:
        """The beginning of a text that others begin with, too."""
        text = self.random.choice(self.draw.texts)
        return list(text[: self.draw.length()])

    def step(self, plan: StepPlan) -> None:
        """Also: how many requests there are."""
        self.most_requests = max(self.most_requests, len(self.handles))
        super().step(plan)

    def sample(self, handle: int) -> None:
        """The step's tokens come back; now and then somebody answers at length."""
        super().sample(handle)
        request = self.sides[0].batched.request_of(handle)
        room = self.config.max_model_len_tokens - request.num_tokens
        count = min(self.draw.length(), room)
        if count > 0 and self.random.random() < 0.05:
            tokens = self.tokens(count)
            self.both("KV-BATCH-12", "append", lambda s: s.batched.append([handle], tokens, count))

    def try_broken(self, plan: Any) -> None:
        """Not here: illegal plans do not depend on sizes."""


def engines(seed: int) -> Iterator[Random]:
    """What each engine is drawn from."""
    for number in itertools.count():
        yield Random(seed * 1_000_003 + number)


def steps_compared(random: Random, subject: Implementation, num_steps: int) -> LongEngine:
    """One engine, its steps by kvfast's own batches and by single calls of kvref."""
    sides = [(kvref.implementation(), SequentialManager), (subject, batched_of)]
    engine = LongEngine(sides, random)
    engine.play(num_steps)
    return engine


def smallest(program: Program, subject: Implementation) -> Violation | None:
    """The difference, after as few and as plain steps as were found in two minutes."""
    oracle = kvref.implementation()

    def found(one: Program) -> Violation | None:
        return first_violation(one, subject, Level.IDENTITY, oracle)

    return found(shrink(program, lambda one: found(one) is not None, seconds=SHRINK_SECONDS))


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--build", choices=("compiled", "uncompiled"), default="compiled")
    options = parser.parse_args(arguments)
    subject = FastImplementation(options.build)
    print(f"seed {options.seed}, kvfast {options.build} beside kvref", flush=True)
    begin = time.monotonic()
    done, steps, wrong = drawn(options.seed, options.operations, subject)
    if wrong is None:
        print(f"{done} operations and {steps} steps equal, {time.monotonic() - begin:.0f} s")
        return 0
    violation = smallest(wrong, subject)
    if violation is not None:
        name = "kvfast" if options.build == "compiled" else "kvfast-uncompiled"
        print(program_test(violation.rule, violation.program, name, "kvref", "identity"))
    return 1


def stories(seed: int) -> Iterator[tuple[str, Program | Random]]:
    """Programs without end, and what an engine is drawn from after every fourth; with a name."""
    randoms = engines(seed)
    numbers = itertools.count(1)
    for batch in itertools.count():
        for program, number in zip(
            production_programs(seed, batch, MAX_STEPS), numbers, strict=False
        ):
            yield f"program {number}", program
            if number % 4 == 0:
                yield f"engine {number // 4}", next(randoms)


def told(story: Program | Random, subject: Implementation) -> tuple[int, int]:
    """Operations and whole steps that were compared; raises at a difference."""
    if isinstance(story, Program):
        return compared(story, subject), 0
    steps_compared(story, subject, STEPS)
    return 0, STEPS


def finds_difference(subject: Implementation, num_operations: int, seed: int = SEED) -> str | None:
    """The first story, of so many operations, in which the subject is not as the reference."""
    done = 0
    for name, story in stories(seed):
        try:
            done += told(story, subject)[0]
        except Exception:  # a difference, or whatever a broken subject runs into
            return name
        if done >= num_operations:
            break
    return None


def drawn(
    seed: int, num_operations: int, subject: Implementation
) -> tuple[int, int, Program | None]:
    """Operations and whole steps compared, and the program that showed a difference, if one did.

    A difference between whole steps is raised as it is.
    """
    done = steps = 0
    for name, story in stories(seed):
        try:
            operations, more_steps = told(story, subject)
        except Exception as error:  # whatever it is, it is the subject's
            if not isinstance(story, Program):
                raise
            print(f"{name}: {type(error).__name__}: {error}")
            return done, steps, story
        done, steps = done + operations, steps + more_steps
        if done >= num_operations:
            break
    return done, steps, None


if __name__ == "__main__":
    sys.exit(main())
