"""Recording: what a recorder writes replays, errors included; what can't be written is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.play.recorder import Recorder
from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from kvspec.errors import FormatError, InvalidArgumentError
from kvspec.policy import Policy
from tests.contract.builders import make_config

CONFIG = make_config(block_size=2, max_model_len_tokens=16)


@pytest.mark.parametrize("policy", [Policy(), Policy.vllm_0_24()])
def test_what_is_recorded_replays(policy: Policy, tmp_path: Path) -> None:
    recorder = Recorder(ReferenceImplementation(), replace(CONFIG, policy=policy))
    recorder.play("new_request", "r", prompt_token_ids=[1, 2, 3])
    assert recorder.play(
        "allocate_slots", "r", num_computed_tokens=0, status="WAITING", num_new_tokens=3
    ) == [[1, 2]]
    recorder.play("free", "r")
    path = tmp_path / "mine.jsonl"
    footer = recorder.write(path)
    assert footer.coverage == {"op:allocate_slots": 1, "op:free": 1, "op:new_request": 1}
    result = replay_trace(path, ReferenceImplementation())
    assert (result.passed, result.compared) == (True, 3)
    assert result.header.config.policy == policy


@pytest.mark.parametrize("call", ["take_block_copies", "withdraw"])
def test_calls_of_later_versions_are_recorded(call: str, tmp_path: Path) -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)
    recorder.play("new_request", "r", prompt_token_ids=[1, 2, 3])
    assert recorder.admit("r", 3) == [[1, 2]]
    if call == "withdraw":
        assert recorder.play(call, "r", num_computed_tokens=2) == []
    else:
        recorder.play(call)
    path = tmp_path / "later.jsonl"
    recorder.write(path)
    result = replay_trace(path, ReferenceImplementation())
    assert (result.passed, result.header.version) == (True, 4)


def test_errors_are_recorded_by_the_class_a_caller_catches(tmp_path: Path) -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)
    recorder.play("free_blocks", block_ids=[3])
    recorder.play("free_blocks", block_ids=[99])
    recorder.play("new_request", "r", prompt_token_ids=[-1])
    raised = [operation.raises for operation in recorder.operations]
    assert raised == ["ValueError", "KeyError", "ValueError"]
    path = tmp_path / "mine.jsonl"
    recorder.write(path)
    assert replay_trace(path, ReferenceImplementation()).passed


def test_a_defect_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)

    def crash(self: Any, block_ids: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvref.manager.ReferenceManager.evict_blocks", crash)
    with pytest.raises(ZeroDivisionError):
        recorder.play("evict_blocks", block_ids=[1])
    assert recorder.operations == []


def test_only_what_a_record_can_hold_is_played() -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)
    with pytest.raises(FormatError, match="'blocks': unknown"):
        recorder.play("evict_blocks", block_ids=[], blocks=[])
    with pytest.raises(InvalidArgumentError, match="op = 'evict'"):
        recorder.play("evict")
    with pytest.raises(InvalidArgumentError, match="req = 'ghost'"):
        recorder.play("free", "ghost")
    with pytest.raises(InvalidArgumentError, match="req = None"):
        recorder.play("free")
    with pytest.raises(InvalidArgumentError, match="req = 'r'"):
        recorder.play("new_step_starts", "r")
    assert recorder.operations == []
