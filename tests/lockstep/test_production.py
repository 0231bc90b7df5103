"""kvref and kvfast side by side at the sizes of production, with options as engines set them."""

from __future__ import annotations

import itertools

from kvcheck.judge.production import production_programs
from kvspec.interface import Implementation
from tests.lockstep.production import MAX_STEPS, SEED, STEPS, compared, engines, steps_compared
from tests.lockstep.sizes import SIZES
from tests.lockstep.test_lockstep import fast

__all__ = ["fast"]  # the fixture

NUM_PROGRAMS = 48
NUM_ENGINES = 12


def test_programs_of_production_sizes_leave_both_in_the_same_state(fast: Implementation) -> None:
    programs = itertools.islice(production_programs(SEED, 0, MAX_STEPS), NUM_PROGRAMS)
    assert sum(compared(program, fast) for program in programs) > 1000


def test_whole_steps_of_production_sizes_are_those_of_the_loop(fast: Implementation) -> None:
    played = [
        steps_compared(random, fast, STEPS)
        for random in itertools.islice(engines(SEED), NUM_ENGINES)
    ]
    assert sum(engine.num_granted for engine in played) > 200
    assert sum(engine.num_refused for engine in played) > 100
    most = [engine.most_requests for engine in played]
    for size in SIZES:
        if size.unit == "requests":
            assert min(most) < size.value < max(most), size


def test_options_are_drawn_as_engines_set_them() -> None:
    """Events, statistics and samples on and off; prompts and pools beyond any small program."""
    programs = list(itertools.islice(production_programs(SEED, 0, MAX_STEPS), NUM_PROGRAMS))
    configs = [program.config for program in programs]
    assert {config.enable_events for config in configs} == {True, False}
    assert {config.log_stats for config in configs} == {True, False}
    assert {config.residency_sample_rate > 0 for config in configs} == {True, False}
    longest = max(len(getattr(s, "prompt", ())) for p in programs for s in p.steps)
    assert longest > 10_000
    assert max(config.kv_cache.num_blocks for config in configs) > 5_000
