"""Traces of vLLM 0.33.0: how they are read, which pass, and what the others need."""

from __future__ import annotations

import json
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
from tests.cases import Case, cases

SPEC = {"type": "FullAttentionSpec", "block_size": 4, "dcp_sharded": True, "tokens_per_state": 1}
CONFIG = {
    "enable_caching": True,
    "hash_block_size": 4,
    "max_num_batched_tokens": 8,
    "max_in_flight_tokens": 16,
}
POLICY = find_profile("vllm-0.33").policy


def header_of(text: str) -> Any:
    """Read a whole header, or what differs in one with CONFIG and two groups; `spec`: of one."""
    value = json.loads(text)
    if not isinstance(value, dict) or "config" in value:
        return value
    version, num_groups = value.pop("version", 2), 1 if "spec" in value else 2
    group = {"layer_names": [], "spec": {**SPEC, **value.pop("spec", {})}}
    return {"version": version, "config": {"groups": [group] * num_groups, **CONFIG, **value}}


@pytest.mark.parametrize("case", cases(__file__, "later.txt"), ids=str)
def test_a_trace_is_said_in_the_words_of_the_contract(case: Case) -> None:
    first, *lines = case.given
    header = header_of(first)
    changed, trace = later_trace(header)
    if trace is None:
        assert changed == header
        case.expect(["not of that engine"])
        return
    said = [(changed, trace.needs), *(trace.line(json.loads(line)) for line in lines)]
    case.expect(", needs ".join([json.dumps(line), *needs]) for line, needs in said)


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
