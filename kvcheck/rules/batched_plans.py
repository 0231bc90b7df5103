"""Whole engine steps: plans that are illegal (KV-BATCH-2, KV-BATCH-3), and random ones."""

from __future__ import annotations

from array import array
from dataclasses import replace
from random import Random

from kvcheck.play.fit import random_program
from kvcheck.play.random_configs import random_config
from kvcheck.play.steps import Program
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.random_batches import Engine
from kvcheck.rules.steps import Steps
from kvspec.batched import Ints, StepPlan
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.sequential import SequentialManager, batched_of

NUM_RANDOM_ENGINES = 24
NUM_RANDOM_STEPS = 12


@example("KV-BATCH-2")
def a_step_whose_last_entry_is_illegal_changes_nothing(bench: Bench) -> None:
    steps = Steps(bench)
    handles = steps.admitted(range(4), range(10, 14), range(20, 24))
    steps.batched.append(handles, [1, 2, 3])
    steps.of(handles[2]).num_computed_tokens = -1
    with steps.manager.refuses(InvalidArgumentError, field="decoding[2].num_computed_tokens"):
        steps.batched.step(StepPlan(decoding=handles))


@cases(([2],), (array("i", [2]),), (array("q", [2]),), (2,))
@example("KV-BATCH-3")
def counts_come_as_a_list_an_array_of_32_or_64_bits_or_one_for_all(
    bench: Bench, counts: Ints | int
) -> None:
    steps = Steps(bench)
    handles = steps.register(range(9))
    granted = steps.batched.admit(array("i", handles), counts).num_scheduled_tokens
    equal(granted.tolist(), [2])


@cases(True, ([True],), (array("d", [2.0]),), (array("I", [2]),), (array("h", [2]),), ([2, 2],))
@example("KV-BATCH-3")
def other_counts_are_refused(bench: Bench, counts: Ints | int) -> None:
    """So are flags in place of handles."""
    steps = Steps(bench)
    handles = steps.register(range(9))
    with raises(InvalidArgumentError):
        steps.batched.admit(handles, counts)
    with raises(InvalidArgumentError):
        steps.batched.free([False])


@example(*(f"KV-BATCH-{number}" for number in range(1, 14)))
def random_steps_are_their_single_calls(bench: Bench) -> None:
    """In every configuration that the subject serves."""
    bench.need(Feature.BATCHED)
    for seed in range(NUM_RANDOM_ENGINES):
        random = Random(seed)
        program = Program(random_config(random), ())
        can = bench.subject.capabilities
        counted = ("admitted", "asked")[seed % 2]
        said = (program, can, replace(bench.policy, lookups_counted=counted))
        fitting = random_program(*said, hashes_matter=True, oracle=bench.oracle)
        if fitting is None:
            continue
        sides = [(bench.subject, SequentialManager), (bench.subject, batched_of)]
        Engine(fitting.config, sides, random).play(NUM_RANDOM_STEPS)
