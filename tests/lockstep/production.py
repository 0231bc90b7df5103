"""kvref and kvfast side by side at the sizes of production: single calls and whole steps.

    python -m tests.lockstep.production --operations 1000000 --seed 3 [--build uncompiled]

draws until so many operations were compared: each answer, block ids in it too, each error, event
and number of free blocks, and the whole state after every so many operations and at the end of each
program; `--looks 1`: after each, with pools of up to 2,000 blocks. Then it says what was drawn. A
difference is made smaller, printed as a test to paste and kept as a record in the folder `--keep`,
and the exit code is 1. Ended early, it says how far it came. `--decoding`: only steps in which
hundreds of requests decode.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import kvref
from kvcheck.judge.evidence import write_record
from kvcheck.judge.pasted import program_test
from kvcheck.play import steps as st
from kvcheck.play.checks import EventCheck
from kvcheck.play.random_programs import BATCH, program_of_steps
from kvcheck.play.runner import Runner
from kvcheck.play.shrink import shrink
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvfast._implementation import FastImplementation
from kvspec.config import ManagerConfig
from kvspec.domains import COUNT_MAX
from kvspec.interface import Implementation
from kvspec.specs import (
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from tests.lockstep.choices import OTHERS, Tally, chosen, chosen_programs, in_flight
from tests.lockstep.drawing import (
    LongDraw,
    asked_first,
    production_config,
    production_program,
    program_under,
)
from tests.lockstep.inside import (
    CARELESS,
    Careless,
    large_programs,
    large_steps_inside,
    perform_careless,
)

MAX_STEPS = 40
STEPS = 12
"""Whole steps of a program."""
SEED = 10
"""Of what CI compares."""
SHRINK_SECONDS = 120.0
NAMES = {"compiled": "kvfast", "uncompiled": "kvfast-uncompiled"}
"""Of each build, for `find_implementation`."""


CALLS_OF_A_ROUND = 8
"""With whole steps the state is compared about once a step."""
BLOCKS_PER_LOOK = 2000
"""With so many blocks more the state is looked at half as often."""


def looks_every(config: ManagerConfig, times: int = 1) -> int:
    return times * (1 + config.kv_cache.num_blocks // BLOCKS_PER_LOOK)


def is_plain(config: ManagerConfig) -> bool:
    return [type(spec) for spec in config.managed_specs] == [FullAttentionSpec]


def compared(
    program: Program, subject: Implementation, *, audit: bool = False, times: int = 1
) -> int:
    """Run a program on both; the number of operations. Raises InvariantViolation.

    `times`: so much rarer than in CI the whole state is compared.
    """
    is_whole = any(isinstance(step, st.Batch) for step in program.steps)
    often = looks_every(program.config, times * (CALLS_OF_A_ROUND if is_whole else 1))
    kind = Careless if program.name == CARELESS else Runner
    sides = (subject, kvref.implementation())
    runner = kind(program, *sides, [EventCheck()], looks_every=often, audit=audit)
    if perform_careless(runner, program):
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


def steps(random: Random, *, is_chosen: bool = False) -> Program:
    config = production_config(random)
    while random.random() < 0.6 and not is_plain(config):
        config = production_config(random)
    if is_chosen:
        config = chosen(config, random.randrange(len(OTHERS)), random)
    num_first = random.choice((0, 0, 14, 62, 280))
    program = program_of_steps(LongDraw(random, config), STEPS, num_first)
    return in_flight(program, random) if is_chosen else program


def crowd(draw: LongDraw, num_rounds: int, num_requests: int) -> Program:
    """Steps in which many requests decode; some end, and others come."""
    random: Random = draw.random
    drawn = list(program_of_steps(draw, 0, num_requests).steps)
    for _ in range(num_rounds):
        parts = [1] * num_requests
        for place in range(num_requests):
            if draw.chance(0.01):
                parts[place] = random.choice((st.ENDS, st.PREEMPTED))
        come = sum(part == st.ENDS for part in parts)
        drawn += [st.Arrive(draw.arrival().prompt[:70]) for _ in range(come)]
        drawn += [draw.alone() for _ in range(random.choice((0, 0, 1, 2, 6)))]
        plain = st.Batch(
            parts=tuple(parts),
            new=random.choice(((COUNT_MAX,), (COUNT_MAX,) * 4 + (0,) * num_requests)),
            turn=random.randrange(60),
            token=random.choice((0, 1)),
            stops_at_refusal=True,
            lookahead_tokens=random.choice((0, 0, 9, 9)),
            rows=random.choice((0, 400, 40_000)),
            more_slots=random.choice((None, None, None, 0)),
            breaks=draw.chance(0.15),
        )
        drawn.append(plain)
    return Program(draw.config, tuple(drawn), name="whole steps of many")


def decoding(random: Random, num_rounds: int = STEPS) -> Program:
    """Many requests that decode a token in each step, mostly without events."""
    config = production_config(random)
    while random.random() < 0.7 and not is_plain(config):
        config = production_config(random)
    if random.random() < 0.7:
        config = replace(config, enable_events=False)
    number = random.choice((16, 16, 64, 256, 512))
    return crowd(LongDraw(random, config), num_rounds * (1 if number > 64 else 6), number)


def unequal_program(random: Random, max_steps: int) -> Program:
    """Draw groups whose blocks differ in size, each asked for its own hit first."""
    config = production_config(random)
    while not config.enable_caching or len({s.block_size for s in config.managed_specs}) < 2:
        config = production_config(random)
    return program_under(config, random, max_steps, asked_first)


def later_program(random: Random, max_steps: int) -> Program:
    """Draw a ring, R-SWA, a window that retains more, as long as texts are, or look-ahead."""
    config = production_config(random)
    while not _has_later(config):
        config = production_config(random)
    groups = [replace(each, spec=_longer(random, each.spec)) for each in config.kv_cache.groups]
    cache = replace(config.kv_cache, groups=tuple(groups))
    ahead = random.choice((0, 1, 7, 65)) if config.hash_lookahead_tokens else 0
    config = replace(config, kv_cache=cache, hash_lookahead_tokens=ahead)
    return program_under(config, random, max_steps)


def _has_later(config: ManagerConfig) -> bool:
    return config.hash_lookahead_tokens > 0 or any(
        isinstance(spec, RSWASpec | CircularBufferSpec) or spec.extra_retained_tokens
        for spec in config.managed_specs
    )


def _longer(random: Random, spec: LayerSpec) -> LayerSpec:
    """Give the spec a window of many blocks, or as many retained tokens before it."""
    many = random.choice((1, spec.block_size - 1, 4 * spec.block_size, 1024)) or 1
    if isinstance(spec, RSWASpec):
        return replace(spec, rswa_window=many)
    if isinstance(spec, SlidingWindowSpec) and spec.extra_retained_tokens:
        return replace(spec, extra_retained_tokens=many)
    return spec


def programs_of(name: str, seed: int) -> Iterator[Program]:
    random = Random(f"{name} {seed}")
    kinds: Mapping[str, Callable[[], Program]] = {
        "steps": lambda: steps(random),
        "steps of choices": lambda: steps(random, is_chosen=True),
        "steps inside": lambda: large_steps_inside(random, 3 * STEPS),
        "decoding": lambda: decoding(random),
    }
    while True:
        yield kinds[name]()


def stories(seed: int, max_steps: int = MAX_STEPS) -> Iterator[tuple[str, Program]]:
    """Programs without end: single calls, and after every fourth whole steps and a mixture.

    After every eighth programs and steps under choices and inside blocks; after every sixteenth
    many decode.
    """
    later, mixtures = Random(seed), Random(seed)
    others: Sequence[tuple[int, str, Iterator[Program]]] = (
        (4, "steps", programs_of("steps", seed)),
        (4, "mixture", (unequal_program(mixtures, max_steps) for _ in itertools.count())),
        (8, "choices", chosen_programs(seed, max_steps)),
        (8, "steps of choices", programs_of("steps of choices", seed)),
        (8, "later groups", (later_program(later, max_steps) for _ in itertools.count())),
        (8, "inside", large_programs(seed, max_steps)),
        (8, "steps inside", programs_of("steps inside", seed)),
        (16, "decoding", programs_of("decoding", seed)),
    )
    batches = (Random(seed * 1_000_003 + batch) for batch in itertools.count())
    programs = (production_program(random, max_steps) for random in batches for _ in range(BATCH))
    for number, program in enumerate(programs, 1):
        yield f"program {number}", program
        for often, name, drawn in others:
            if number % often == 0:
                yield f"{name} {number // often}", next(drawn)


def finds_difference(subject: Implementation, num_operations: int, seed: int = SEED) -> str | None:
    """The first story, of so many operations, in which the subject is not as the reference."""
    done = 0
    for name, story in stories(seed):
        try:
            done += compared(story, subject)
        except Exception:  # a difference, or whatever a broken subject runs into
            return name
        if done >= num_operations:
            break
    return None


def main(arguments: list[str] | None = None) -> int:
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
    drawn = stories(options.seed, options.steps)
    if options.decoding:
        many = Random(options.seed)
        drawn = (("decoding", decoding(many, options.steps)) for _ in itertools.count())
    for name, program in drawn:
        try:
            number = compared(program, subject, times=options.looks)
        except KeyboardInterrupt:  # what was compared until then counts
            break
        except Exception as error:  # whatever it is, it is the subject's
            print(f"{name}: {type(error).__name__}: {error}")
            wrong = program
            break
        tally.add_program(program, number)
        done = tally.num_operations
        if done >= options.operations:
            break
    print("never drawn:", ", ".join(tally.never_drawn()) or "nothing")
    if wrong is None:
        took = f"{time.monotonic() - begin:.0f} s, {time.process_time() - cpu:.0f} of the processor"
        print(f"{done} operations equal, {took}")
        return 0
    name = NAMES[options.build]
    tell(wrong, name, subject, options.keep / f"{name}-production-{options.seed}.jsonl")
    return 1


if __name__ == "__main__":
    sys.exit(main())
