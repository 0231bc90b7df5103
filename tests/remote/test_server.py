"""The server's side: replies to invalid messages, stdout, names of servers, verdicts on them."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.discovery import find_implementation
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.remote import server
from kvcheck.remote.client import parse_name
from kvcheck.remote.codec import encode
from kvcheck.remote.manager import ALLOCATE_DEFAULTS, RemoteManager
from kvcheck.remote.operations import MESSAGES
from kvref import implementation
from kvspec.codec import encode_manager_config, field_of_member
from kvspec.errors import RemoteError, UnknownImplementationError
from kvspec.interface import Implementation, KVCacheManager
from tests.cases import Case, cases
from tests.programs import SCENARIOS
from tests.remote.servers import SERVE, config, connect, serve
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
    code = server.serve(implementation(), io.BytesIO(data), answers)
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
    monkeypatch.setattr("kvcheck.remote.codec.MAX_MESSAGE_BYTES", 1400)
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


@pytest.mark.parametrize("case", cases(__file__, "names.txt"), ids=str)
def test_a_name_is_a_command_and_its_options_or_says_why_not(case: Case) -> None:
    try:
        options = parse_name(case.name)
    except UnknownImplementationError as error:
        case.expect([error.reason])
        with pytest.raises(UnknownImplementationError):
            find_implementation(case.name)
    else:
        case.expect(
            [" ".join(map(repr, options.command)), f"{options.framing} {options.timeout_s}"]
        )


def test_a_program_that_is_not_there_or_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for path, words in ((tmp_path / "nowhere", "No such file"), (tmp_path / "text", "Permission")):
        with pytest.raises(RemoteError, match=f"can't be started: {words}"):
            find_implementation(f"cmd:{shlex.quote(str(path))}")


def test_an_implementation_that_serve_does_not_find_is_told_with_its_words() -> None:
    with pytest.raises(RemoteError, match=r"exit status 2.*unknown implementation 'nowhere'"):
        find_implementation(serve("nowhere"))


def test_golden_passes_over_either_framing(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ("", "+json"):
        assert main(["golden", "--impl", serve("kvref", options=options)]) == 0
        assert "0 failed" in capsys.readouterr().out


def test_a_server_that_dies_in_a_replay_is_a_failed_trace_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import os\n"
        "from kvref.manager import ReferenceManager\n"
        "from kvcheck.cli import main\n"
        "ReferenceManager.free = lambda *_: os._exit(7)\n"
        "raise SystemExit(main(['serve', 'kvref']))\n"
    )
    name = f"cmd:{shlex.join((sys.executable, str(broken)))}"
    assert main(["golden", "--impl", name]) == 1
    shown = capsys.readouterr()
    assert "ended with exit status 7" in shown.out.replace("\n", " ")
    assert "Traceback" not in shown.out + shown.err


USAGE = 'RIGHT["get_usage"] = {"num_free_blocks": %s, "usage": 0.0}\n'
LISTS = 'RIGHT["get_block_ids"] = {"blocks": [[]], "unhashed": [[]]}\n'


@pytest.mark.parametrize(
    "answers",
    [USAGE % "5.0", USAGE % "5" + LISTS + 'RIGHT["make_request"] = {}\n'],
    ids=["a float for an int", "a member that is missing"],
)
def test_what_is_no_answer_breaks_no_rule(tmp_path: Path, answers: str) -> None:
    server: Implementation = connect(tmp_path, answers + 'until("nothing")')
    violation = first_violation(SCENARIOS[0], server, Level.SAFETY)
    assert violation is not None
    assert (violation.rule, violation.name) == ("protocol", "speaks_the_protocol")
    assert violation.expected == "a message as spec/protocol.md has it"
    assert "answered nonsense" in violation.observed


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ("groups", "kv_cache.groups"),
        ("kv_cache.groups", "kv_cache.groups"),
        ("num_blocks", "kv_cache.num_blocks"),
        ("scheduler_block_size", "scheduler_block_size_tokens"),
        ("watermark", "watermark"),
    ],
)
def test_an_error_may_name_the_member_or_the_field(member: str, field: str) -> None:
    assert field_of_member(member) == field


def test_each_default_is_left_out_in_one_call_and_sent_in_the_next() -> None:
    manager = object.__new__(RemoteManager)  # type: ignore[type-abstract]  # made of the interface
    manager._num_allocations = 0  # without a server
    first, second = (manager._some_left_out(ALLOCATE_DEFAULTS) for _ in range(2))
    assert set(first) | set(second) == set(ALLOCATE_DEFAULTS)
    assert not set(first) & set(second)
    other = {**dict.fromkeys(ALLOCATE_DEFAULTS, 1), "has_scheduled_reqs": False}
    assert manager._some_left_out(other) == manager._some_left_out(other) == other


def test_the_defaults_are_those_of_the_interface() -> None:
    assert KVCacheManager.allocate_slots.__kwdefaults__ == dict(ALLOCATE_DEFAULTS)
