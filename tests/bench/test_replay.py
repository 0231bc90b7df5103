"""A trace as a script: what was recorded, and that every manager does it, in either way."""

from __future__ import annotations

from collections import Counter

import pytest

import kvref
from kvcheck.tools.bench.calls import UnequalWorkError
from kvcheck.tools.bench.cases import Plan, ReplayCase
from kvcheck.tools.bench.measure import Measured, Subject, measure
from kvcheck.tools.bench.replay import (
    MANAGER,
    REPLAY_ADMIT,
    REPLAY_APPEND,
    REPLAY_FREE,
    REPLAY_HASH,
    REPLAY_RUN,
    REPLAY_STEP,
)
from kvcheck.tools.bench.script import Act, Script, record
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import TraceRecord
from tests.bench.toy import BATCHED_COSTS_NS, COSTS_NS, FakeClock, Toy, other_blocks, other_rows

TRACE = tuple(
    TraceRecord(line, 0, input_length=600 + 40 * line, output_length=20, hash_ids=(line % 2, line))
    for line in range(1, 8)
)
ROOMY = ReplayOptions(400, 16, max_tokens_per_step=1000, max_running=4)
TIGHT = ReplayOptions(100, 16, max_tokens_per_step=1000, max_running=4)
OPTIONS = (pytest.param(ROOMY, id="roomy"), pytest.param(TIGHT, id="tight"))


def script(options: ReplayOptions) -> Script:
    return record(kvref.implementation(), options, TRACE, trace_name="trace")


def replayed(options: ReplayOptions, *toys: Toy, clock: FakeClock) -> Measured:
    subjects = [Subject(f"toy-{index}", toy) for index, toy in enumerate(toys)]
    return measure(Plan((ReplayCase("trace", script(options)),), 2), subjects, clock=clock)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_script_holds_what_the_driver_counts(options: ReplayOptions) -> None:
    counts = Driver(kvref.implementation(), options, TRACE, trace_name="trace").run().counts
    made = script(options)
    assert len(made.steps) == counts.steps
    assert len(made.prompts) == counts.requests == len(TRACE)
    assert made.count(Act.ADMIT) == counts.requests + counts.preempted_requests
    assert made.count(Act.PREEMPT) == counts.preemptions
    assert made.count(Act.APPEND) == counts.tokens_generated
    assert made.count(Act.FINISH) == counts.requests
    assert [len(prompt) for prompt in made.prompts] == [each.input_length for each in TRACE]


def test_a_tight_pool_refuses_and_preempts() -> None:
    """Show that the tests here cover refusals and preemptions."""
    made = script(TIGHT)
    assert made.count(Act.PREEMPT) > 0
    assert made.count(Act.ADMIT, granted=False) > 0
    assert made.count(Act.RUN, granted=False) > 0
    assert script(ROOMY).count(Act.PREEMPT) == 0


@pytest.mark.parametrize("options", OPTIONS)
def test_single_and_batched_calls_do_the_script_with_the_same_answers(
    options: ReplayOptions,
) -> None:
    clock, heard = FakeClock(), Counter[str]()
    toy = Toy(clock, on_call=lambda name: heard.update([name]))
    found = replayed(options, toy, clock=clock).measurements
    spent = {(each.phase, name): ns[0] for each in found for name, ns in each.rounds_ns.items()}
    made, rounds = script(options), 3
    refused = made.count(Act.ADMIT, granted=False)
    admit_ns = COSTS_NS["look_up"] + COSTS_NS["allocate_with_hit"]
    assert spent["replay: admit", "toy-0"] == admit_ns * (made.count(Act.ADMIT) + refused)
    assert spent[REPLAY_APPEND, "toy-0"] == COSTS_NS["append_tokens"] * made.count(Act.APPEND)
    frees = made.count(Act.FINISH) + made.count(Act.PREEMPT)
    assert spent[REPLAY_FREE, "toy-0"] == COSTS_NS["free"] * frees
    runs = made.count(Act.RUN) + made.count(Act.RUN, granted=False)
    assert spent[REPLAY_RUN, "toy-0"] == COSTS_NS["allocate"] * runs
    assert spent[REPLAY_HASH, "toy-0"] == COSTS_NS["make_request"] * len(TRACE)
    parts = (REPLAY_ADMIT, REPLAY_RUN, REPLAY_FREE)
    assert spent[MANAGER, "toy-0"] == sum(spent[part, "toy-0"] for part in parts)
    steps = heard["batched step"] // rounds
    assert steps >= len(made.steps)
    unregistered = heard["batched unregister"] // rounds
    batched_ns = (
        steps * BATCHED_COSTS_NS["step"]
        + unregistered * BATCHED_COSTS_NS["unregister"]
        + BATCHED_COSTS_NS["free"]
    )
    assert spent[REPLAY_STEP, "toy-0, batched"] == batched_ns
    assert spent[MANAGER, "toy-0, batched"] == batched_ns


@pytest.mark.parametrize("options", OPTIONS)
def test_a_replay_with_other_blocks_is_not_compared(options: ReplayOptions) -> None:
    clock = FakeClock()
    with pytest.raises(UnequalWorkError):
        replayed(options, Toy(clock), Toy(clock, change=other_blocks), clock=clock)


def test_a_batched_replay_with_other_blocks_is_not_compared() -> None:
    clock = FakeClock()
    with pytest.raises(UnequalWorkError) as caught:
        replayed(ROOMY, Toy(clock, change_batched=other_rows), clock=clock)
    assert "toy-0, batched" in (caught.value.first, caught.value.other)
