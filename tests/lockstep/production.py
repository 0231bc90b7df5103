"""kvref and kvfast side by side at the sizes of production: single calls and whole steps.

    python -m tests.lockstep.production --operations 1000000 --seed 3 [--build uncompiled]

draws until so many operations were compared: each answer, block ids in it too, each error, event
and number of free blocks, and the whole state after every so many operations and at the end of each
program; `--looks 1`: after each, with pools of up to 2,000 blocks. Then it says what was drawn. A
difference is made smaller, printed as a test to paste and kept as a record in the folder `--keep`,
and the exit code is 1. Ended early, it says how far it came. `--decoding`: only steps in which
hundreds of requests decode; operations are then each request's part in a step, appends and ends.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import kvref
from kvcheck.judge.choices import chosen_programs
from kvcheck.judge.evidence import write_record
from kvcheck.judge.pasted import program_test
from kvcheck.judge.production import later_program, production_programs, unequal_program
from kvcheck.play.performing import perform
from kvcheck.play.shrink import shrink
from kvcheck.play.sparse import SparseRunner
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvfast._implementation import FastImplementation
from kvspec.interface import Implementation
from tests.lockstep.choosing import ChoosingEngine
from tests.lockstep.engines import DecodingEngine, LongEngine, engines, looks_every, steps_compared
from tests.lockstep.inside import LongInsideEngine, large_programs
from tests.lockstep.tally import Tally

MAX_STEPS = 40
STEPS = 8
"""Of an engine."""
SEED = 10
"""Of what CI compares."""
SHRINK_SECONDS = 120.0
NAMES = {"compiled": "kvfast", "uncompiled": "kvfast-uncompiled"}
"""Of each build, for `find_implementation`."""


def compared(
    program: Program, subject: Implementation, *, audit: bool = False, times: int = 1
) -> int:
    """Run a program on both; the number of operations. Raises InvariantViolation.

    `times`: so much rarer than in CI the whole state is compared.
    """
    often = looks_every(program.config, times)
    runner = SparseRunner(program, subject, kvref.implementation(), looks_every=often, audit=audit)
    perform(runner, program.steps)
    runner.compare_states()
    return len(runner.operations)


def smallest(program: Program, subject: Implementation) -> Violation | None:
    """The difference, after as few and as plain steps as were found in two minutes."""
    oracle = kvref.implementation()

    def found(one: Program) -> Violation | None:
        return first_violation(one, subject, Level.IDENTITY, oracle)

    return found(shrink(program, lambda one: found(one) is not None, seconds=SHRINK_SECONDS))


def tell(program: Program, name: str, subject: Implementation, path: Path) -> bool:
    """Print the smallest such program as a test, and keep it as a record; whether it fails."""
    violation = smallest(program, subject)
    if violation is None:
        print("# not shown by the program alone")
        return False
    print(program_test(violation.rule, violation.program, name, "kvref", "identity"))
    path.parent.mkdir(parents=True, exist_ok=True)
    written = write_record(violation, subject, kvref.implementation(), path)
    print(f"# kept as {path}" if written.path else f"# not kept: {written.reason}")
    return True


class Choosing(Random):
    """What an engine under choices is drawn from."""


class Inside(Random):
    """What an engine of hits inside a block is drawn from."""


class Decoding(Random):
    """What an engine of hundreds of requests that decode is drawn from."""


def decoding(seed: int) -> Iterator[tuple[str, Random]]:
    """Engines of hundreds of requests that decode, without end."""
    for number in itertools.count(1):
        yield f"decoding {number}", Decoding(seed * 1_000_003 - number)


def choosing(seed: int) -> Iterator[Choosing]:
    """What engines under choices are drawn from."""
    for number in itertools.count(1):
        yield Choosing(seed * 1_000_003 - 500_000 - number)


def states(seed: int) -> Iterator[Inside]:
    """What engines of hits inside a block are drawn from."""
    for number in itertools.count(1):
        yield Inside(seed * 1_000_003 - 900_000 - number)


def stories(seed: int, max_steps: int = MAX_STEPS) -> Iterator[tuple[str, Program | Random]]:
    """Programs without end; after every fourth what an engine is drawn from, and a mixture.

    After every eighth a program and an engine under choices; after every sixteenth many decode.
    """
    randoms, mixtures, crowds = engines(seed), Random(seed), decoding(seed)
    choices, choosers = chosen_programs(seed, max_steps), choosing(seed)
    inside, insiders = large_programs(seed, max_steps), states(seed)
    later = Random(seed)
    numbers = itertools.count(1)
    for batch in itertools.count():
        for program, number in zip(
            production_programs(seed, batch, max_steps), numbers, strict=False
        ):
            yield f"program {number}", program
            if number % 4 == 0:
                yield f"engine {number // 4}", next(randoms)
                yield f"mixture {number // 4}", unequal_program(mixtures, max_steps)
            if number % 8 == 0:
                yield f"choices {number // 8}", next(choices)
                yield f"engine of choices {number // 8}", next(choosers)
                yield f"later groups {number // 8}", later_program(later, max_steps)
                yield f"inside {number // 8}", next(inside)
                yield f"engine inside {number // 8}", next(insiders)
            if number % 16 == 0:
                yield next(crowds)


def told(
    story: Program | Random,
    subject: Implementation,
    tally: Tally | None = None,
    times: int = 1,
    num_steps: int = STEPS,
) -> int:
    """Operations of single calls that were compared; raises at a difference."""
    tally = tally or Tally()
    if isinstance(story, Program):
        number = compared(story, subject, times=times)
        tally.add_program(story, number)
        return number
    add_engine(tally, steps_compared(story, subject, num_steps, times=times, kind=kind_of(story)))
    return 0


def kind_of(random: Random) -> type[LongEngine]:
    """The engine that is drawn from it."""
    kinds = {Decoding: DecodingEngine, Choosing: ChoosingEngine, Inside: LongInsideEngine}
    return kinds.get(type(random), LongEngine)


def add_engine(tally: Tally, engine: LongEngine) -> None:
    """What an engine drew."""
    tally.add_engine(
        engine.config, engine.drew, prompt=engine.longest_prompt, requests=engine.most_requests
    )


def finds_difference(subject: Implementation, num_operations: int, seed: int = SEED) -> str | None:
    """The first story, of so many operations, in which the subject is not as the reference."""
    done = 0
    for name, story in stories(seed):
        try:
            done += told(story, subject)
        except Exception:  # a difference, or whatever a broken subject runs into
            return name
        if done >= num_operations:
            break
    return None


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--build", choices=("compiled", "uncompiled"), default="compiled")
    parser.add_argument("--looks", type=int, default=16, help="whole state after so many")
    parser.add_argument("--steps", type=int, default=4 * MAX_STEPS, help="of a program or engine")
    parser.add_argument("--decoding", action="store_true", help="whole steps of many requests only")
    parser.add_argument("--keep", type=Path, default=Path("found"), help="for a record of it")
    options = parser.parse_args(arguments)
    for ended in (signal.SIGINT, signal.SIGTERM):  # it says how far it came
        signal.signal(ended, signal.default_int_handler)
    subject = FastImplementation(options.build)
    print(f"seed {options.seed}, kvfast {options.build} beside kvref", flush=True)
    begin, cpu = time.monotonic(), time.process_time()
    tally, done, wrong = Tally(), 0, None
    drawn: Iterator[tuple[str, Program | Random]] = stories(options.seed, options.steps)
    if options.decoding:
        drawn = iter(decoding(options.seed))
    for name, story in drawn:
        try:
            num_steps = options.steps if options.decoding else STEPS
            told(story, subject, tally, options.looks, num_steps)
        except KeyboardInterrupt:  # what was compared until then counts
            break
        except Exception as error:  # whatever it is, it is the subject's
            if not isinstance(story, Program):
                raise
            print(f"{name}: {type(error).__name__}: {error}")
            wrong = story
            break
        done = tally.num_entries if options.decoding else tally.num_operations
        if done >= options.operations:
            break
    print(*tally.lines(), sep="\n")
    if wrong is None:
        took = f"{time.monotonic() - begin:.0f} s, {time.process_time() - cpu:.0f} of the processor"
        print(f"{done} operations and {tally.num_steps} steps equal, {took}")
        return 0
    name = NAMES[options.build]
    tell(wrong, name, subject, options.keep / f"{name}-production-{options.seed}.jsonl")
    return 1


if __name__ == "__main__":
    sys.exit(main())
