"""Logs that proxies write, and LMSYS's conversations: requests, lengths, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.trace import TraceRecord

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is a block"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "some tokens"}]
USAGE = {"usage": {"completion_tokens": 7}}


def read(folder: Path, lines: list[Any]) -> tuple[list[TraceRecord], tuple[str, ...]]:
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with TraceFile(str(path)) as trace:
        return list(trace), trace.notes


@pytest.mark.parametrize(
    "line",
    [
        {"request": {"messages": CHAT}, "response": USAGE},
        {"request_body": {"messages": CHAT}, "response_body": USAGE, "status": 200},
        {"messages": CHAT, "response": USAGE, "model": "m"},
        {"messages": ANSWERED, "response": {"body": USAGE}},
        {"body": {"messages": CHAT}, "response": {"body": USAGE}},
    ],
)
def test_a_line_of_a_proxy_is_one_request_with_its_output(line: Any, tmp_path: Path) -> None:
    found, notes = read(tmp_path, [line, line])
    assert [record.output_length for record in found] == [7, 7]
    assert found[0].hash_ids == found[1].hash_ids
    assert not any("outputs not in the data" in note or "from 2 lines" in note for note in notes)


def test_an_answer_without_usage_leaves_the_output_open(tmp_path: Path) -> None:
    found, notes = read(tmp_path, [{"request": {"messages": CHAT}, "response": {"usage": None}}])
    assert [record.output_length for record in found] == [256]
    assert any("outputs not in the data: 1" in note for note in notes)


def test_lmsys_conversations_have_a_request_for_each_answer(tmp_path: Path) -> None:
    again = [*ANSWERED, CHAT[1], ANSWERED[2]]
    lines = [{"conversation_id": "a", "model": "m", "conversation": again, "turn": 2}]
    found, notes = read(tmp_path, lines)
    assert [record.place for record in found] == ["1", "1.1"]
    assert found == read(tmp_path, [{"messages": again}])[0]
    assert notes[-1] == "requests: 2, from 1 lines"
