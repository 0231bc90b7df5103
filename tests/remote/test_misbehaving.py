"""Servers that break the protocol or write unasked: each is one typed error, in time."""

from __future__ import annotations

import re
import select
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.elsewhere import foresee
from kvcheck.remote.client import RemoteImplementation
from kvspec.errors import KVSpecError, RemoteError
from kvspec.interface import KVCacheManager
from tests.cases import Case, cases
from tests.remote.servers import (
    config,
    connect,
    count_waits,
    ends,
    is_running,
    request_input,
    script,
)

TIMEOUT_S = 0.5
"""For servers that hang; the others get more, a busy machine must not look like a hang."""


def hurry(remote: RemoteImplementation) -> None:
    """Shorten the time for later replies; the start of the program had enough."""
    options = remote.connection.options
    remote.connection.options = replace(options, timeout_s=TIMEOUT_S)


def call(remote: RemoteImplementation, manager: KVCacheManager, code: str) -> None:
    if "pipelining" in code:
        foresee(manager, "get_usage")
        manager.new_step_starts()
    if "get_usage" in code or "pipelining" in code:
        _ = manager.usage
        return
    (op,) = re.findall(r"^answer\(until\('(\w+)'\)", code)
    request = remote.make_request(manager, request_input())
    if op == "append_tokens":
        remote.append_tokens(manager, request, [6])
    given = {"allocate_slots": (request, 5), "free": (request,)}.get(op, ())
    getattr(manager, op)(*given)


@pytest.mark.parametrize("case", cases(__file__, "faults.txt"), ids=str)
def test_a_fault_is_one_clear_error_in_time(tmp_path: Path, case: Case) -> None:
    code = "\n".join(case.given)
    remote = connect(tmp_path, f"{code}\ntime.sleep(60)\n")
    process_id = remote.connection.process_id
    manager = remote.create(config())
    if any("no answer" in line for line in case.said):
        hurry(remote)
    started = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        call(remote, manager, code)
    error = caught.value
    assert time.monotonic() - started < 10
    problem = re.sub(r"at least \d+ bytes", "at least … bytes", error.problem)
    told = [error.stderr.rpartition(" | ")[2]] if "noise" not in error.stderr else []
    case.expect(filter(None, [f"{error.last}: {problem}", *told]))
    assert error.problem in str(error)
    assert "\n" not in str(error)
    assert "server.py" in error.command
    assert not is_running(process_id)
    with pytest.raises(RemoteError) as again:
        manager.snapshot()
    assert str(again.value) == str(error)


def test_a_server_that_stops_reading_is_a_time_out_and_no_hang(tmp_path: Path) -> None:
    """Send a message larger than a pipe, so that writing it would block."""
    remote = connect(tmp_path, "m = until('create_manager')\nanswer(m, CREATED)\ntime.sleep(60)\n")
    manager = remote.create(config())
    hurry(remote)
    with pytest.raises(RemoteError, match=r"no answer within 0\.5 s"):
        remote.make_request(manager, request_input(num_tokens=200_000))


def test_a_message_that_is_too_long_is_not_sent_and_harms_nothing(tmp_path: Path) -> None:
    remote = connect(tmp_path, "until('never')\n")
    manager = remote.create(config())
    with pytest.raises(KVSpecError, match="a message has at most"):
        remote.make_request(manager, request_input(num_tokens=4_000_000))
    assert remote.make_request(manager, request_input()).num_tokens == 5


@pytest.mark.parametrize(
    "fields",
    ["'protocol': 2", "'protocol': '1'", "'features': None", "'spec_types': [1]", "'name': 7"],
)
def test_a_wrong_handshake_is_an_error(tmp_path: Path, fields: str) -> None:
    with pytest.raises(RemoteError, match="answered nonsense"):
        connect(tmp_path, f"answer(read(), {{**HELLO, {fields}}})\nread()\n")


def test_a_handshake_may_say_more_than_we_know(tmp_path: Path) -> None:
    code = (
        "answer(read(), {**HELLO, 'features': ['telepathy', 'eagle'], 'colour': 'red'})\nread()\n"
    )
    remote = connect(tmp_path, code)
    assert remote.capabilities.features == {"eagle"}


def test_a_server_that_does_not_offer_pipelining_is_sent_one_message_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
answer(until("new_step_starts"), None)
answer(read(), {"num_free_blocks": 3, "usage": 0.25})
"""
    waits = count_waits(monkeypatch)
    manager = connect(tmp_path, code).create(config())
    waits.clear()
    foresee(manager, "get_usage")
    manager.new_step_starts()
    assert manager.num_free_blocks == 3
    assert waits == [1, 1]


def test_a_refused_version_says_why(tmp_path: Path) -> None:
    code = (
        "m = read()\nwrite({'id': 0, 'error': {'class': 'ProtocolError',"
        " 'message': 'only version 9', 'fields': {'reason': 'version'}}})\nread()\n"
    )
    with pytest.raises(RemoteError, match="ProtocolError version: only version 9"):
        connect(tmp_path, code)


def test_an_internal_error_is_an_error_and_the_conversation_goes_on(tmp_path: Path) -> None:
    code = """
m = until('get_usage')
error = {'class': 'InternalError', 'message': 'KeyError: 7', 'fields': {'type': 'KeyError'}}
write({'id': m['id'], 'error': error})
answer(until('get_usage'), {'num_free_blocks': 3, 'usage': 0.25})
"""
    manager = connect(tmp_path, code).create(config())
    with pytest.raises(RemoteError, match="InternalError: KeyError: 7"):
        _ = manager.usage
    assert manager.num_free_blocks == 3


def test_after_a_failure_the_next_manager_starts_the_program_anew(tmp_path: Path) -> None:
    remote = connect(tmp_path, "until('get_usage')\nsys.exit(1)\n")
    first = remote.create(config())
    with pytest.raises(RemoteError):
        _ = first.usage
    second = remote.create(config())
    assert remote.make_request(second, request_input()).num_tokens == 5
    with pytest.raises(RemoteError, match="exit status 1"):
        remote.make_request(first, request_input())


def test_what_a_server_started_ends_with_it(tmp_path: Path) -> None:
    code = """
child = subprocess.Popen(['sleep', '60'])
m = until('get_usage')
answer(m, {'num_free_blocks': child.pid, 'usage': 0.0})
read()
"""
    remote = connect(tmp_path, code)
    grandchild = remote.create(config()).num_free_blocks
    assert is_running(grandchild)
    remote.close()
    assert ends(grandchild)


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends by itself", "has to be killed"])
def test_the_child_ends_when_nobody_uses_it_any_more(tmp_path: Path, stubborn: bool) -> None:
    remote = connect(
        tmp_path, "until('never')\n" if not stubborn else "answer(read(), HELLO)\ntime.sleep(60)\n"
    )
    process_id = remote.connection.process_id
    assert is_running(process_id)
    del remote
    assert not is_running(process_id)


def test_an_interrupt_ends_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End it, as the pending reply would be taken for the next one."""
    remote = connect(tmp_path, "until('never')\n")
    manager = remote.create(config())

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("kvcheck.remote.child.Child.exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = manager.usage
    with pytest.raises(RemoteError, match="interrupted"):
        _ = manager.usage


@pytest.mark.parametrize(
    ("framing", "hint"),
    [("+cbor", "; without +cbor the framing"), ("+json", "; without +json the framing"), ("", "")],
)
def test_a_server_silent_at_hello_is_an_error_that_says_what_to_try(
    framing: str, hint: str
) -> None:
    with pytest.raises(RemoteError, match=rf"no answer within 0\.5 s{re.escape(hint)}"):
        find_implementation(f"cmd{framing}+timeout=0.5:sleep 60")


SKIPS_WHAT_IT_CANNOT_READ = """
import io
sys.stdin = io.TextIOWrapper(sys.stdin.buffer, errors="replace")
sys.stdin.readline = lambda f=sys.stdin.readline: next(s for s in iter(f, 0) if s[:1] in ("{", ""))
"""


@pytest.mark.parametrize(
    ("before", "timeout_s", "seconds"), [("", 60, 30), (SKIPS_WHAT_IT_CANNOT_READ, 2, 30)]
)
def test_a_server_of_json_lines_needs_no_option(
    tmp_path: Path, before: str, timeout_s: float, seconds: float
) -> None:
    name = script(tmp_path, before + "until('never')\n", timeout_s=timeout_s)
    started = time.monotonic()
    remote = find_implementation(name.replace("+json", ""))
    assert time.monotonic() - started < seconds
    assert isinstance(remote, RemoteImplementation)
    assert remote.make_request(remote.create(config()), request_input()).num_tokens == 5
    assert remote.options.framing == "json", "the next start need not find it out again"


def test_a_server_that_fails_in_either_framing_tells_both_failures(tmp_path: Path) -> None:
    name = script(tmp_path, "read(); write({'id': 0}); read()\n").replace("+json", "")
    with pytest.raises(RemoteError, match=r"status 1; in JSON lines: answered nonsense") as caught:
        find_implementation(name)
    assert caught.value.last == "hello, number 0"


AFTER_A_WHILE = """
while not os.path.exists(os.path.join(os.path.dirname(sys.argv[0]), 'go')): time.sleep(0.01)
"""


def go_on(folder: Path) -> None:
    (folder / "go").touch()


def wait_for_output(remote: RemoteImplementation) -> None:
    stdout = remote.connection._child._stdout  # which the client reads as well
    assert select.select([stdout], [], [], 30)[0]


def test_a_server_that_writes_unasked_is_found_at_the_next_message(tmp_path: Path) -> None:
    code = "m = until('get_usage')\nanswer(m, {'num_free_blocks': 1, 'usage': 0.5})\n"
    code += f"{AFTER_A_WHILE}\nprint('by the way', flush=True); read()\n"
    remote = connect(tmp_path, code)
    manager = remote.create(config())
    assert manager.usage == 0.5
    go_on(tmp_path)
    wait_for_output(remote)
    with pytest.raises(RemoteError, match="without being asked: b'by the way"):
        _ = manager.usage


SURPLUS = """
HELLO["pipelining"] = {pipelining}
usage = {{"num_free_blocks": 3, "usage": 0.25}}
first = until("get_usage")
answer(first, usage)
{then}
answer(first, usage)
read()
"""
"""One answer too many to message 2, at another time each."""


@pytest.mark.parametrize("pipelining", [False, True])
@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("{wait}", 'without being asked: b\'{"id": 2'),
        ("read()", "wrote more than one answer to number 2"),
    ],
    ids=["before the next message", "in place of its answer"],
)
def test_an_answer_too_many_is_found_at_the_next_message(
    tmp_path: Path, then: str, words: str, pipelining: bool
) -> None:
    code = SURPLUS.format(pipelining=pipelining, then=then.format(wait=AFTER_A_WHILE))
    remote = connect(tmp_path, code)
    manager = remote.create(config())
    assert manager.num_free_blocks == 3
    if "wait" in then:
        go_on(tmp_path)
        wait_for_output(remote)
    foresee(manager, "get_usage")
    with pytest.raises(RemoteError, match=re.escape(words)):
        manager.new_step_starts()


def test_an_answer_too_many_is_found_at_the_end(tmp_path: Path) -> None:
    code = SURPLUS.format(pipelining=False, then="sys.stdin.read()")
    remote = connect(tmp_path, code)
    assert remote.create(config()).num_free_blocks == 3
    with pytest.raises(RemoteError, match=r"wrote more than its answers: b'\{\"id\": 2"):
        remote.close()
    remote.close()


def test_a_server_that_answers_once_ends_without_a_word(tmp_path: Path) -> None:
    remote = connect(tmp_path, "until('never')\n")
    remote.create(config())
    remote.close()
