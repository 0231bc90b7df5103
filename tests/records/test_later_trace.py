"""Traces of vLLM 0.33.0: how they are read, which pass, and what the others need."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.records.select import find
from kvcheck.records.trace import replay_trace
from kvspec.interface import Feature
from kvspec.later_trace import later_trace
from kvspec.profile import find_profile

SPEC = {"type": "FullAttentionSpec", "block_size": 4, "dcp_sharded": True, "tokens_per_state": 1}
CONFIG = {
    "groups": [{"layer_names": [], "spec": SPEC}] * 2,
    "enable_caching": True,
    "hash_block_size": 4,
    "max_num_batched_tokens": 8,
    "max_in_flight_tokens": 16,
}
POLICY = find_profile("vllm-0.33").policy


def header(**members: Any) -> dict[str, Any]:
    return {"version": 2, "config": {**CONFIG, **members}}


def needs(**members: Any) -> tuple[str, ...]:
    _, trace = later_trace(header(**members))
    assert trace is not None
    return trace.needs


def spec(**members: Any) -> list[dict[str, Any]]:
    return [{"layer_names": [], "spec": {**SPEC, **members}}]


def test_only_headers_of_that_engine_are_translated() -> None:
    values: list[Any] = [
        {**header(), "version": 1},
        {"version": 2, "config": {}},
        [],
        {"config": 1},
    ]
    for value in values:
        assert later_trace(value) == (value, None)
    changed, trace = later_trace(header())
    assert trace is not None
    assert trace.needs == ()
    assert changed["version"] == 3
    assert changed["config"]["max_num_batched_tokens"] == 16
    assert changed["config"]["groups"][0]["spec"] == {"type": "FullAttentionSpec", "block_size": 4}


@pytest.mark.parametrize(
    ("members", "needed"),
    [
        ({"num_hash_lookahead_tokens": 1}, ()),
        ({"num_prefill_lookahead": 1}, ()),
        ({"num_prefill_lookahead": 2}, ("prefill look-ahead",)),
        (
            {"enable_mamba_shared_prefix_checkpoint": True},
            ("states of chunks that end at a junction",),
        ),
        ({"groups": spec(type="RSWASpec", rswa_window=3)}, ()),
        ({"groups": spec(type="CircularBufferSpec")}, ()),
        ({"groups": spec(extra_retained_tokens=2)}, ()),
        ({"groups": spec(type="MambaSpec", mamba_cache_mode="align")}, ()),
        ({"groups": spec(type="MambaSpec", mamba_cache_mode="align"), "hash_block_size": 2}, ()),
    ],
)
def test_what_the_contract_lacks_is_named(members: dict[str, Any], needed: tuple[str, ...]) -> None:
    assert needs(**members) == needed


def test_operations_are_said_in_the_words_of_the_contract() -> None:
    _, trace = later_trace(header())
    assert trace is not None
    asked = {"op": "get_computed_blocks", "req": "r", "args": {}}
    result = {"blocks": [[1], [2]], "num_computed_tokens": 4, "shared_prefix_boundary": 12}
    line, needed = trace.line({**asked, "result": result})
    assert (line["result"]["num_uncached_common_prefix_tokens"], needed) == (8, ())
    assert trace.line({"op": "take_kv_cache_block_copies", "args": {}}) == (None, ())
    given = {"op": "remove_skipped_blocks", "args": {"processed_computed_tokens": 5}}
    assert trace.line(given)[0]["args"] == {"total_computed_tokens": 5}
    counts = {"num_new_tokens": 5, "shared_prefix_boundary": 12}
    line, needed = trace.line({"op": "allocate_slots", "args": counts})
    assert line["args"] == {"num_new_tokens": 5, "junction_tokens": 12}
    assert needed == ()
    told = {"op": "new_request", "req": "r", "args": {"kv_cache_report_mode": "full"}}
    assert trace.line(told)[0]["args"] == {"reports_hits": True}
    assert trace.line(7) == (7, ())


def test_of_equal_events_the_later_one_is_the_report() -> None:
    _, trace = later_trace(header())
    assert trace is not None
    given = {"kv_cache_report_mode": "full", "prompt_token_ids": [1, 2, 3]}
    trace.line({"op": "new_request", "req": "r", "args": given})
    trace.line({"op": "append_tokens", "req": "r", "args": {"token_ids": [4, 5]}})
    hit = {"blocks": [[1, 2], []], "num_computed_tokens": 4}
    trace.line({"op": "get_computed_blocks", "req": "r", "args": {}, "result": hit})
    event = {"type": "BlockStored", "group_idx": 0, "parent_block_hash": None}
    event |= {"token_ids": [1, 2, 3, 4], "block_hashes": ["aa", "bb"]}
    events = [event, event, {**event, "group_idx": 1}, {**event, "parent_block_hash": "aa"}]
    line, _ = trace.line({"op": "take_events", "args": {}, "result": events})
    assert [each.get("is_report", False) for each in line["result"]] == [False, True, False, False]
    line, _ = trace.line({"op": "take_events", "args": {}, "result": [event]})
    assert line["result"] == [event]


NEEDED: dict[str, int] = {}
"""Chapters that the contract lacks, and the traces that need them."""
NUM_PASSED = 60
NUM_COMPARED = 7200
"""Traces and operations that pass with the profile, at least."""


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["kvref", "kvfast", pytest.param("kvfast-uncompiled", marks=pytest.mark.deep)]
)
def test_traces_of_vllm_0_33_pass_or_say_why_not(name: str, shared: Path) -> None:
    folder = shared / "golden-0.33"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    implementation = find_implementation(name)
    lacks, different, compared, passed = Counter[str](), {}, 0, 0
    candidates = find([folder])
    assert len(candidates) == 60
    for candidate in candidates:
        found = replay_trace(candidate.path, implementation, policy=POLICY)
        lacks.update(found.lacks)
        compared += found.compared
        passed += not found.lacks and found.mismatch is None
        if found.mismatch is not None:
            different[candidate.path.name.partition(".")[0]] = found.mismatch.what
    if Feature.HITS_INSIDE_BLOCKS not in implementation.capabilities.features:
        del lacks[Feature.HITS_INSIDE_BLOCKS]
    assert lacks == NEEDED
    assert different == {}
    assert passed >= NUM_PASSED
    assert compared > NUM_COMPARED
