"""Replays through the groups of a model some of whose layers forget tokens."""

from __future__ import annotations

from itertools import takewhile
from random import Random

import pytest

from kvcheck.cli._plans import HybridModel
from kvcheck.discovery import find_implementation
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import Layout, ModelOptions, Readable
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.tools.replay.units import units_of
from kvcheck.tools.replay.whatif import endless_hits, look_up, lru_hits
from kvspec.errors import InvalidArgumentError
from tests.replay.records import record

RUN = 512


def random_trace(random: Random, *, most_runs: int) -> list[TraceRecord]:
    """Return prompts that share prefixes, none of which ends with a block of 80 tokens."""
    found: list[TraceRecord] = []
    for number in range(1, 13):
        start = random.choice(found).hash_ids if found else ()
        start = start[: random.randint(0, len(start))]
        new = random.randint(1, 3)
        ids = (*start, *(1_000 * number + place for place in range(new)))[:most_runs]
        length = RUN * (len(ids) - 1) + random.choice((33, 129, 477))
        found.append(record(number, list(ids), length, random.choice((1, 40))))
    return found


def hits(records: list[TraceRecord], layout: Layout, implementation: str, per_step: int) -> int:
    options = ModelOptions.of(layout, max_running=1, max_tokens_per_step=per_step)
    subject = find_implementation(implementation)
    driver = Driver(subject, options, records, trace_name="t", check_invariants=False)
    return driver.run().counts.tokens_hit


@pytest.mark.parametrize("seed", range(4))
def test_a_window_that_no_request_leaves_hits_as_full_attention(seed: int) -> None:
    # Eight runs of 512 tokens are the window of Mistral 7B: the pass over stacks knows none.
    records = random_trace(Random(seed), most_runs=7)
    units = units_of(records, 16)
    for gib in (0.55, 0.8, 1.2):
        layout = HybridModel("mistral-7b-v0.1", None).layout(gib, 8_192)
        assert layout.kv_cache.num_blocks >= units.smallest_pool
        expected = lru_hits(look_up(units), layout.kv_cache.num_blocks) * 16
        assert hits(records, layout, "kvfast", 8_192) == expected, gib


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-27b", "llama-4-scout"])
def test_a_pool_that_keeps_all_windows_hits_as_an_endless_one(model: str) -> None:
    records = random_trace(Random(7), most_runs=12)
    layout = HybridModel(model, None).layout(6, 8_192)
    expected = endless_hits(look_up(units_of(records, 16))) * 16
    assert hits(records, layout, "kvfast", 8_192) == expected > 0


def in_common(one: TraceRecord, other: TraceRecord) -> int:
    """Count the tokens that both prompts begin with."""
    equal = takewhile(
        lambda pair: pair[0] == pair[1], zip(one.hash_ids, other.hash_ids, strict=False)
    )
    return min(one.input_length, other.input_length, RUN * len(list(equal)))


@pytest.mark.parametrize("per_step", [80, 200, 8_192])
def test_states_are_hit_where_a_step_ended_at_a_block(per_step: int) -> None:
    # Jamba keeps a state where a step ends at a multiple of 80 tokens.
    records = random_trace(Random(per_step), most_runs=9)
    layout = HybridModel("jamba-v0.1", None).layout(1, per_step)
    assert (layout.block_size, layout.step_multiple) == (80, 80)
    kept: list[tuple[TraceRecord, set[int]]] = []
    expected = 0
    for each in records:
        places = (
            place
            for earlier, states in kept
            for place in states
            if place <= min(in_common(each, earlier), each.input_length - 1)
        )
        hit = computed = max(places, default=0)
        states, length = set(), each.input_length
        while computed < length:
            end = min(length, computed + per_step)
            computed = end // 80 * 80 if end // 80 * 80 > computed else end
            if computed % 80 == 0:
                states.add(computed)
        kept.append((each, states | {hit}))
        expected += hit
    assert hits(records, layout, "kvfast", per_step) == expected > 0
    assert hits(records, layout, "kvref", per_step) == expected


def test_a_step_must_have_the_tokens_of_a_block() -> None:
    layout = HybridModel("jamba-v0.1", None).layout(1, 80)
    with pytest.raises(InvalidArgumentError) as found:
        ModelOptions.of(layout, max_tokens_per_step=79)
    assert found.value.field == "max_tokens_per_step"


def test_requests_that_a_model_does_not_read_are_left_out() -> None:
    layout = HybridModel("mistral-7b-v0.1", None).layout(8, 8_192)
    runs = [*range(64)]
    fits, longer = record(1, runs, 64 * RUN, 1), record(2, runs, 64 * RUN, 2)
    found = Readable([fits, longer, fits], layout)
    assert [each.line for each in found] == [1, 1]
    assert found.notes == (
        "longer than the 32,768 tokens that mistral-7b-v0.1 reads, and left out: 1 requests",
    )
    assert Readable([fits], layout).notes == ()
