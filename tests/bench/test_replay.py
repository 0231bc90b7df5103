"""A trace as a script: what was recorded, and that every manager does it, in either way."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest

import kvref
from kvcheck.tools.bench.calls import (
    MANAGER,
    REPLAY_ADMIT,
    REPLAY_APPEND,
    REPLAY_FREE,
    REPLAY_HASH,
    REPLAY_RUN,
    UnequalWorkError,
)
from kvcheck.tools.bench.replay import recorded
from kvcheck.tools.bench.script import Act, Case, Do
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import TraceRecord
from tests.bench.toy import (
    BATCHED_COSTS_NS,
    COSTS_NS,
    FakeClock,
    Toy,
    measured,
    other_blocks,
    other_rows,
)

TRACE = tuple(
    TraceRecord(line, 0, input_length=600 + 40 * line, output_length=20, hash_ids=(line % 2, line))
    for line in range(1, 8)
)
ROOMY = ReplayOptions(400, 16, max_tokens_per_step=1000, max_running=4)
TIGHT = ReplayOptions(100, 16, max_tokens_per_step=1000, max_running=4)


def script(options: ReplayOptions) -> tuple[Case, list[Do]]:
    case = recorded(kvref.implementation(), options, TRACE, trace_name="trace")
    _, steps = case.rounds(1)
    return case, [do for step in steps for do in step]


@pytest.mark.parametrize("options", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_a_script_is_what_the_driver_did_by_single_and_by_batched_calls(
    options: ReplayOptions,
) -> None:
    counts = Driver(kvref.implementation(), options, TRACE, trace_name="trace").run().counts
    case, acts = script(options)
    num = Counter[Act]()
    for do in acts:
        num[do.act] += len(do.requests)
    admitted = sum(want is not None for do in acts if do.act is Act.ADMIT for want in do.wants)
    assert admitted == counts.requests + counts.preempted_requests
    assert num[Act.MAKE] == num[Act.FREE] == counts.requests == len(TRACE)
    assert (num[Act.PREEMPT], num[Act.APPEND]) == (counts.preemptions, counts.tokens_generated)
    refused = [do.act for do in acts if None in do.wants]
    assert (num[Act.PREEMPT] > 0) is (Act.RUN in refused) is (options is TIGHT)
    assert (Act.ADMIT in refused) is (options is TIGHT)
    assert case.facts["options"] == asdict(options)
    assert [len(given) for do in acts if do.act is Act.MAKE for given in do.given] == [
        each.input_length for each in TRACE
    ]
    found = measured(case, toy=Toy(FakeClock())).measurements
    spent = {(each.phase, name): ns[0] for each in found for name, ns in each.rounds_ns.items()}
    assert spent[REPLAY_HASH, "toy"] == COSTS_NS["make_request"] * len(TRACE)
    admit_ns = COSTS_NS["look_up"] + COSTS_NS["allocate_with_hit"]
    assert spent[REPLAY_ADMIT, "toy"] == admit_ns * num[Act.ADMIT]
    assert spent[REPLAY_APPEND, "toy"] == COSTS_NS["append_tokens"] * num[Act.APPEND]
    frees = num[Act.FREE] + num[Act.PREEMPT]
    assert spent[REPLAY_FREE, "toy"] == COSTS_NS["free"] * frees
    assert spent[REPLAY_RUN, "toy"] == COSTS_NS["allocate"] * num[Act.RUN]
    calls = Counter(do.act for do in acts)
    batched = {
        REPLAY_ADMIT: BATCHED_COSTS_NS["admit"] * calls[Act.ADMIT],
        REPLAY_RUN: BATCHED_COSTS_NS["decode"] * calls[Act.RUN],
        REPLAY_FREE: BATCHED_COSTS_NS["free"] * (calls[Act.FREE] + calls[Act.PREEMPT])
        + BATCHED_COSTS_NS["unregister"] * calls[Act.FREE],
    }
    assert {phase: spent[phase, "toy, batched"] for phase in batched} == batched
    for name in ("toy", "toy, batched"):
        assert spent[MANAGER, name] == sum(spent[phase, name] for phase in batched)


@pytest.mark.parametrize("options", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_a_replay_with_other_blocks_is_not_compared(options: ReplayOptions) -> None:
    case, _ = script(options)
    clock = FakeClock()
    with pytest.raises(UnequalWorkError):
        measured(case, toy=Toy(clock), other=Toy(clock, change=other_blocks))
    with pytest.raises(UnequalWorkError) as caught:
        measured(case, toy=Toy(clock, change_batched=other_rows))
    assert "toy, batched" in (caught.value.first, caught.value.other)
