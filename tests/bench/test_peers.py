"""Other projects' own calls do the work that the reference does. Skipped where one is missing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import kvref
from kvcheck.adapters import nanovllm, sglang, vllm
from kvcheck.tools.bench.calls import (
    ADMIT,
    APPEND,
    CHUNK,
    DECODE,
    FREE,
    HASH,
    LOOK_UP,
    Calls,
    UnequalWorkError,
)
from kvcheck.tools.bench.measure import Measured, contestants, measure
from kvspec.interface import Implementation, KVCacheManager
from tests.adapters.nano_stand_in import write_package
from tests.bench.toy import PLAN


def beside_kvref(name: str, peer: Implementation) -> Measured:
    both = (name, peer), ("kvref", kvref.implementation())
    return measure(PLAN, [way for each in both for way in contestants(*each)])


def phases(found: Measured, name: str) -> set[str]:
    return {each.phase for each in found.measurements if name in each.rounds_ns}


def test_vllm_called_directly_answers_as_the_reference() -> None:
    try:
        peer = vllm.implementation()
    except vllm.VLLMUnavailableError as error:
        pytest.skip(str(error))
    found = beside_kvref("vllm", peer)
    assert found.includes["vllm"].startswith("vLLM's own Request and KVCacheManager")
    assert phases(found, "vllm") == phases(found, "kvref")


def test_sglang_called_directly_finds_and_releases_as_much() -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns of what a CPU lacks
            peer = sglang.implementation()
    except sglang.SGLangUnavailableError as error:
        pytest.skip(str(error))
    found = beside_kvref("sglang", peer)
    assert found.includes["sglang"].startswith("SGLang's own Req and radix tree")
    assert {HASH, LOOK_UP, FREE} <= phases(found, "sglang")
    assert not {ADMIT, CHUNK, APPEND, DECODE} & phases(found, "sglang")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nanovllm.NanoImplementation:
    write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return nanovllm.implementation()


def test_nano_vllm_called_directly_gets_as_many_blocks(
    stand_in: nanovllm.NanoImplementation,
) -> None:
    """Compare lengths, but not chunks: it takes a whole prompt at once."""
    found = beside_kvref("nano-vllm", stand_in)
    assert phases(found, "kvref") - phases(found, "nano-vllm") == {CHUNK}


def test_a_nano_vllm_that_gets_fewer_blocks_is_not_compared(
    stand_in: nanovllm.NanoImplementation,
) -> None:
    class Fewer(nanovllm.NanoImplementation):
        def bench_calls(self, manager: KVCacheManager) -> Calls:
            calls = super().bench_calls(manager)
            return replace(calls, read_blocks=lambda answer: answer[:-1])

    with pytest.raises(UnequalWorkError):
        beside_kvref("nano-vllm", Fewer(stand_in.library))


def test_nano_vllm_itself() -> None:
    try:
        peer = nanovllm.implementation()
    except nanovllm.NanoUnavailableError as error:
        pytest.skip(str(error))
    assert LOOK_UP in phases(beside_kvref("nano-vllm", peer), "nano-vllm")
