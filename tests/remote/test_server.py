"""The server's side: what it answers to messages that are none, and what it keeps off stdout."""

from __future__ import annotations

import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvcheck.remote.codec import encode
from kvcheck.remote.operations import MESSAGES
from kvcheck.remote.server import serve
from kvref import implementation
from kvspec.codec import encode_manager_config
from tests.remote.configs import config
from tests.remote.servers import SERVE
from tests.source import ROOT

HELLO = {"id": 0, "op": "hello", "args": {"protocol": [1], "client": "test"}}
CREATE: dict[str, Any] = {
    "id": 1,
    "op": "create_manager",
    "manager": 1,
    "args": {"config": encode_manager_config(config()), "check_invariants": True},
}
PROMPT = {"request_id": "a", "prompt_token_ids": [1, 2, 3, 4, 5]}
MAKE = {"id": 2, "op": "make_request", "manager": 1, "request": 2, "args": PROMPT}
LARGE = config(num_blocks=200)
PROTOCOL = (ROOT / "spec/protocol.md").read_text(encoding="utf-8")


def talk(*messages: dict[str, Any], tail: bytes = b"") -> tuple[int, list[dict[str, Any]]]:
    data = b"".join(encode(message, "json") for message in messages) + tail
    answers = io.BytesIO()
    code = serve(implementation(), io.BytesIO(data), answers)
    return code, [json.loads(line) for line in answers.getvalue().splitlines()]


def last_error(*messages: dict[str, Any]) -> dict[str, Any]:
    """The error that answers the last message; the server must still serve afterwards."""
    code, answers = talk(*messages, {**HELLO, "id": 77})
    assert code == 0
    assert "result" in answers[-1]
    error: dict[str, Any] = answers[-2]["error"]
    assert error["class"] == "ProtocolError"
    return error


NO_MESSAGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown op": ({"op": "fly"}, "unknown_op", "'fly'"),
    "no op": ({}, "bad_message", "field 'op': missing"),
    "an op that is no text": ({"op": 3}, "bad_message", "op"),
    "an unknown member": ({"op": "snapshot", "manager": 1, "x": 1}, "bad_message", "'x': unknown"),
    "no handle": ({"op": "snapshot"}, "bad_message", "'manager': missing"),
    "an unknown handle": ({"op": "snapshot", "manager": 9}, "unknown_handle", "manager"),
    "a handle that is no int": ({"op": "snapshot", "manager": "1"}, "bad_message", "manager"),
    "a handle too many": (
        {"op": "snapshot", "manager": 1, "request": 2},
        "bad_message",
        "'request': snapshot names none",
    ),
    "an unknown argument": (
        {"op": "snapshot", "manager": 1, "args": {"all": True}},
        "bad_message",
        "'args.all': unknown",
    ),
    "a missing argument": (
        {"op": "evict_blocks", "manager": 1},
        "bad_message",
        "'args.block_ids': missing",
    ),
    "a handle in use": ({**CREATE}, "bad_message", "handle 1 is in use"),
    "handle 0": ({**CREATE, "manager": 0}, "bad_message", "at least 1"),
    "a configuration that is none": (
        {**CREATE, "manager": 5, "args": {"config": {}, "check_invariants": True}},
        "bad_message",
        "args.config",
    ),
    "an attribute that is none": (
        {"op": "free", "manager": 1, "request": 2, "set": {"priority": 1}},
        "bad_message",
        "'set.priority': unknown",
    ),
    "attributes of no request": (
        {"op": "snapshot", "manager": 1, "set": {"status": "WAITING"}},
        "bad_message",
        "set",
    ),
    "handles that are no list": (
        {"op": "drop", "args": {"managers": 5, "requests": [], "windows": []}},
        "bad_message",
        "args.managers",
    ),
    "a handle that is a list": (
        {"op": "drop", "args": {"managers": [[1]], "requests": [], "windows": []}},
        "bad_message",
        "args.managers",
    ),
    "an attribute as an argument": (
        {
            "op": "cache_blocks",
            "manager": 1,
            "request": 2,
            "args": {"num_computed_tokens": 4, "junction_tokens": 4},
        },
        "bad_message",
        "'args.junction_tokens': unknown",
    ),
    "an unknown planning function": (
        {"op": "plan", "args": {"fn": "guess", "input": {}}},
        "unknown_op",
        "'guess'",
    ),
}


@pytest.mark.parametrize(
    ("message", "reason", "words"), NO_MESSAGES.values(), ids=NO_MESSAGES.keys()
)
def test_what_is_no_message_is_answered_and_the_conversation_goes_on(
    message: dict[str, Any], reason: str, words: str
) -> None:
    error = last_error(HELLO, CREATE, MAKE, {**message, "id": 3})
    assert error["fields"] == {"reason": reason}
    assert words in error["message"]


def test_messages_before_the_handshake_are_refused() -> None:
    assert "before hello" in last_error(CREATE)["message"]


def test_versions_that_we_do_not_speak_are_refused() -> None:
    hello = {**HELLO, "args": {"protocol": [7, 8], "client": "test"}}
    assert last_error(hello)["fields"] == {"reason": "version"}


@pytest.mark.parametrize("tail", [b"nonsense\n", b"[]\n", b'{"id":', b"\n"])
def test_bytes_that_are_no_message_end_the_conversation(
    tail: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answers = talk(HELLO, tail=tail)
    assert code == 2
    assert answers[-1]["id"] is None
    assert answers[-1]["error"]["fields"] == {"reason": "bad_message"}
    assert capsys.readouterr().err.startswith("kvspec serve: ")


def test_an_answer_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    create = {**CREATE, "args": {**CREATE["args"], "config": encode_manager_config(LARGE)}}
    snapshot = {"id": 2, "op": "snapshot", "manager": 1}
    monkeypatch.setattr("kvcheck.remote.codec.MAX_MESSAGE_BYTES", 1200)
    code, answers = talk(HELLO, create, snapshot, {**HELLO, "id": 3})
    assert code == 0
    assert answers[2]["error"]["fields"] == {"reason": "too_large"}
    assert "result" in answers[3]


NOISY = """
import os
print("imported")
from kvref import implementation as kvref

def make():
    print("made")
    os.write(1, b"from C ")
    return kvref()
"""


def test_standard_output_carries_the_protocol_only(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    done = subprocess.run(
        (*SERVE, "noisy:make"),
        cwd=tmp_path,
        input=encode(HELLO, "json"),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["result"]["name"] == "kvref"
    assert sorted(done.stderr.split()) == [b"C", b"from", b"imported", b"made"]


def test_serve_ends_when_its_input_does() -> None:
    done = subprocess.run((*SERVE, "kvref"), input=b"", capture_output=True, check=True)
    assert done.stdout == b""


# spec/protocol.md.


def test_the_example_in_the_protocol_is_what_a_server_answers() -> None:
    lines = re.findall(r"^([<>]) (.*)$", PROTOCOL, re.MULTILINE)
    sent = [json.loads(text) for mark, text in lines if mark == ">"]
    expected = [json.loads(text) for mark, text in lines if mark == "<"]
    _, answers = talk(*sent)
    assert len(answers) == len(expected) == 7
    assert set(answers[0]["result"]) == set(expected[0]["result"])  # says who it is
    assert answers[1:] == expected[1:]


def test_the_protocol_describes_every_message() -> None:
    table = PROTOCOL.partition("## Operations")[2].partition("## Snapshot")[0]
    described = {
        op
        for line in table.splitlines()
        if line.startswith("| `")
        for op in re.findall(r"`(\w+)`", line.split("|")[1])
    } - {"op", "clone", "restore", "statistics", "planning"}
    assert described == set(MESSAGES)
