"""The server's side: its replies to invalid messages, and what it keeps off stdout."""

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
from tests.cases import Case, cases
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
    """Return the error for the last message; the server must still serve afterwards."""
    code, answers = talk(*messages, {**HELLO, "id": 77})
    assert code == 0
    assert "result" in answers[-1]
    error: dict[str, Any] = answers[-2]["error"]
    assert error["class"] == "ProtocolError"
    return error


NO_MESSAGES = cases(__file__, "messages.txt")


def no_message(case: Case) -> dict[str, Any]:
    """Build an invalid message; after `create`, read how it differs from a valid one."""
    _, created, members = case.given[0].rpartition("create ")
    return {**(CREATE if created else {}), **json.loads(members), "id": 3}


@pytest.mark.parametrize("case", NO_MESSAGES, ids=str)
def test_what_is_no_message_is_answered_and_the_conversation_goes_on(case: Case) -> None:
    error = last_error(HELLO, CREATE, MAKE, no_message(case))
    assert error["fields"].keys() == {"reason"}
    case.expect([f"{error['fields']['reason']}: {error['message']}"])


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
    assert set(answers[0]["result"]) == set(expected[0]["result"])  # names the implementation
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
