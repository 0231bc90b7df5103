"""vLLM's own calls do the work that the reference does. Skipped where vLLM cannot be imported."""

from __future__ import annotations

import pytest

import kvref
from kvspec.adapters.vllm import VLLMUnavailableError, implementation
from kvspec.bench.measure import Subject, measure
from tests.bench.toy import PLAN


def test_vllm_called_directly_answers_as_the_reference() -> None:
    try:
        peer = implementation()
    except VLLMUnavailableError as error:
        pytest.skip(str(error))
    subjects = [Subject("vllm", peer), Subject("kvref", kvref.implementation())]
    found = measure(PLAN, subjects)
    assert found.includes["vllm"].startswith("vLLM's own Request and KVCacheManager")
    assert {name for each in found.measurements for name in each.rounds_ns} == {"vllm", "kvref"}
