"""Whole engine steps: random ones equal their single calls (KV-BATCH-1 … KV-BATCH-13)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from kvcheck.play.fit import random_program
from kvcheck.play.random_configs import random_config
from kvcheck.play.steps import Program
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.random_batches import Engine
from kvspec.interface import Feature
from kvspec.sequential import SequentialManager, batched_of

NUM_RANDOM_ENGINES = 24
NUM_RANDOM_STEPS = 12


@example(*(f"KV-BATCH-{number}" for number in range(1, 14)))
def random_steps_are_their_single_calls(bench: Bench) -> None:
    """Check in every configuration that the subject supports."""
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
