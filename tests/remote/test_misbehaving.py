"""Servers that break the protocol: each is one typed error, in time, and leaves no process."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.elsewhere import foresee
from kvcheck.remote.client import RemoteImplementation
from kvspec.errors import KVSpecError, RemoteError
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from tests.remote.configs import config, request_input
from tests.remote.servers import connect, count_waits, ends, is_running, script

TIMEOUT_S = 0.5
"""For servers that hang; the others get more, a busy machine must not look like a hang."""

# Name: what the server does after it has read get_usage, and words of the error.
FAULTS = {
    "hangs": ("time.sleep(60)", "no answer within 0.5 s"),
    "spins": ("while True: pass", "no answer within 0.5 s"),
    "drips": (
        "while True: sys.stdout.write(' '); sys.stdout.flush(); time.sleep(0.05)",
        "no answer within 0.5 s",
    ),
    "ignores being asked to end": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
        "no answer within 0.5 s",
    ),
    "exits": ("print('out of luck', file=sys.stderr); sys.exit(3)", "ended with exit status 3"),
    "exits well": ("sys.exit(0)", "ended with exit status 0"),
    "raises": ("raise IndexError('no such block')", "IndexError: no such block"),
    "dies": ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    "dies in an answer": (
        "sys.stdout.write('{\"id\"'); sys.stdout.flush(); sys.exit(4)",
        "exit status 4, after 5 bytes of an answer",
    ),
    "closes stdout": ("os.close(1); time.sleep(60)", "closed its stdout"),
    "prints garbage": ("print('hello world', flush=True)", "not JSON at column 1"),
    "prints bytes": ("os.write(1, bytes(range(128, 256)) + b'\\n')", "not UTF-8"),
    "prints a list": ("print('[]', flush=True)", "[] is not an object"),
    "prints an empty line": ("print(flush=True)", "empty line"),
    "floods": ("while True: os.write(1, b'x' * 65536)", "a line of at least"),
    "floods with lines": ("while True: os.write(1, b'{}\\n' * 1000)", "more than one answer"),
    "floods stderr": (
        "for _ in range(2000): os.write(2, b'noise ' * 1000)\nsys.exit(5)",
        "ended with exit status 5",
    ),
    "floods stderr without end": (
        "while True: os.write(2, b'noise ' * 1000)",
        "no answer within 0.5 s",
    ),
    "answers twice": (
        "text = json.dumps({'id': m['id'], 'result': {'num_free_blocks': 1, 'usage': 0.5}})\n"
        "os.write(1, (text + '\\n' + text + '\\n').encode()); time.sleep(60)",
        "more than one answer",
    ),
    "answers another message": (
        "write({'id': 99, 'result': {'num_free_blocks': 1, 'usage': 0.5}})",
        "field 'id': 99, not 2",
    ),
    "answers without id": ("write({'result': 1})", "field 'id': missing"),
    "answers true for its id": ("write({'id': True, 'result': None})", "field 'id': True, not 2"),
    "answers result and error": (
        "write({'id': m['id'], 'result': 1, 'error': 2})",
        "field 'result': unknown",
    ),
    "answers neither": ("write({'id': m['id']})", "field 'result': missing"),
    "answers more": ("write({'id': m['id'], 'result': 1, 'more': 2})", "field 'more': unknown"),
    "answers a text": ("answer(m, 'many')", "'many' is not an object"),
    "answers null": ("answer(m, None)", "None is not an object"),
    "answers a float count": (
        "answer(m, {'num_free_blocks': 3.0, 'usage': 0.5})",
        "num_free_blocks': 3.0 is not an int",
    ),
    "answers true for one": (
        "answer(m, {'num_free_blocks': True, 'usage': 0.5})",
        "True is not an int",
    ),
    "answers nan": ('os.write(1, b\'{"id":2,"result":NaN}\\n\')', "NaN is not JSON"),
    "answers an unknown error": (
        "write({'id': m['id'], 'error': {'class': 'Oops', 'message': '', 'fields': {}}})",
        "unknown class 'Oops'",
    ),
    "answers an error without fields": (
        "write({'id': m['id'], 'error': {'class': 'StaleHitError', 'message': '', 'fields': {}}})",
        "field 'error.fields.field': missing",
    ),
    "answers too deep": ("os.write(1, b'[' * 100000 + b'\\n')", "nested too deeply"),
    "answers an endless number": ("os.write(1, b'{\"id\":' + b'9' * 9999 + b'}\\n')", "digits"),
}


def hurry(remote: RemoteImplementation) -> None:
    """From here on answers have little time; the start of the program had enough."""
    options = remote.connection.options
    remote.connection.options = replace(options, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_one_clear_error_in_time(tmp_path: Path, fault: str, words: str) -> None:
    remote = connect(tmp_path, f"m = until('get_usage')\n{fault}\ntime.sleep(60)\n")
    process_id = remote.connection.process_id
    manager = remote.create(config())
    if "no answer" in words:
        hurry(remote)
    started = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        _ = manager.usage
    assert time.monotonic() - started < 10
    error = caught.value
    assert words in str(error)
    assert "\n" not in str(error)
    assert error.last == "get_usage, number 2"
    assert "server.py" in error.command
    assert not is_running(process_id), "the child is reaped at once"
    with pytest.raises(RemoteError) as again:
        manager.snapshot()
    assert str(again.value) == str(error), "later calls say the same"


def test_a_server_that_stops_reading_is_a_time_out_and_no_hang(tmp_path: Path) -> None:
    """The message is larger than a pipe: writing it would block."""
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


NONSENSE = {
    "hashes that are none": ("make_request", "{'num_tokens': 5, 'block_hashes': ['xyz']}"),
    "no hash at all": ("make_request", "{'num_tokens': 5, 'block_hashes': [None]}"),
    "one list too many": ("allocate_slots", "[[1], [2]]"),
    "ids as texts": ("allocate_slots", "[['1']]"),
    "true for null": ("allocate_slots", "True"),
    "an answer where there is none": ("free", "0"),
    "one for true": ("reset_prefix_cache", "1"),
    "events without type": ("take_events", "[{}]"),
    "stats without members": ("make_prefix_cache_stats", "{}"),
    "a snapshot of nothing": ("snapshot", "{}"),
    "hashes that do not add up": (
        "append_tokens",
        "{'num_tokens': 6, 'num_block_hashes': 9, 'new_block_hashes': []}",
    ),
}


@pytest.mark.parametrize(("op", "answer"), NONSENSE.values(), ids=NONSENSE.keys())
def test_answers_of_the_wrong_shape_are_errors(tmp_path: Path, op: str, answer: str) -> None:
    remote = connect(tmp_path, f"m = until({op!r})\nanswer(m, {answer})\ntime.sleep(60)\n")
    manager = remote.create(config())
    calls: dict[str, Callable[[Request], object]] = {
        "make_request": lambda _: None,
        "allocate_slots": lambda request: manager.allocate_slots(request, 5),
        "free": manager.free,
        "append_tokens": lambda request: remote.append_tokens(manager, request, [6]),
        "reset_prefix_cache": lambda _: manager.reset_prefix_cache(),
        "take_events": lambda _: manager.take_events(),
        "make_prefix_cache_stats": lambda _: manager.make_prefix_cache_stats(),
        "snapshot": lambda _: manager.snapshot(),
    }
    with pytest.raises(RemoteError, match="nonsense"):
        calls[op](remote.make_request(manager, request_input()))


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


@pytest.mark.parametrize(
    ("code", "words", "last"),
    [
        ("answer(first, None); sys.exit(0)", "exit status 0", "get_usage, number 3"),
        ("answer(first, None); time.sleep(60)", "no answer within", "get_usage, number 3"),
        ("answer(second, usage); answer(first, None)", "3, not 2", "new_step_starts, number 2"),
        (
            "text = ''.join(json.dumps({'id': m['id'], 'result': r}) + '\\n' for m, r in"
            " ((first, None), (second, usage), (second, usage)))\nos.write(1, text.encode())",
            "more than one answer",
            "get_usage, number 3",
        ),
        ("answer(first, None); answer(second, 7)", "7 is not an object", "get_usage, number 3"),
    ],
)
def test_foreseen_questions_are_answered_in_order_and_in_time(
    tmp_path: Path, code: str, words: str, last: str
) -> None:
    head = """
HELLO["pipelining"] = True
usage = {"num_free_blocks": 3, "usage": 0.25}
first = until("new_step_starts")
second = read()
"""
    remote = connect(tmp_path, head + code + "\ntime.sleep(60)")
    manager = remote.create(config())
    if "no answer" in words:
        hurry(remote)
    foresee(manager, "get_usage")
    with pytest.raises(RemoteError, match=words) as caught:
        step_and_usage(manager)
    assert caught.value.last == last


def step_and_usage(manager: KVCacheManager) -> int:
    manager.new_step_starts()
    return manager.num_free_blocks


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
    """Else the answer that was not waited for would be taken for the next one."""
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
