"""Everything that reads what a stranger wrote: valid input of each, and how it is read."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge.expected import Asked, expected_text, read_expected
from kvcheck.judge.findings import Finding
from kvcheck.records.planning import replay_planning
from kvcheck.records.select import shipped_records
from kvcheck.remote.calls import Session as ServerSession
from kvcheck.remote.child import ChildFailure
from kvcheck.remote.client import RemoteImplementation
from kvcheck.remote.codec import MessageBuffer, decode, encode
from kvcheck.remote.connection import Options
from kvcheck.remote.server import answer, serve
from kvcheck.tools.plans.document import read_plan_file
from kvcheck.tools.plans.report import make_report
from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.view import NotShownError, load
from kvspec.profile import RECORDS_PROFILE, read_profile
from kvspec.record_file import read_header, read_trace
from tests.plans.files import EXPLICIT, SMALL
from tests.records.changed import PATH as PLANNING
from tests.remote.servers import config, request_input

REFERENCE = kvref.implementation()


@dataclass(frozen=True)
class Reader:
    """One reader. `kind`: of input, in `mutate.KINDS`. `read` raises KVSpecError to refuse.

    `hard`: input that was once taken, at a cost.
    """

    kind: str
    valid: Callable[[], tuple[bytes, ...]]
    read: Callable[[Path], object]
    hard: tuple[bytes, ...] = ()


def records() -> tuple[bytes, ...]:
    return tuple(
        (shipped_records() / f"{n}.jsonl").read_bytes() for n in ("life_of_blocks", "identities")
    )


def read_record(path: Path) -> None:
    read_header(path)
    for _ in read_trace(path):
        pass


def view(path: Path) -> None:
    with contextlib.suppress(NotShownError):
        load(path)


def planning_records() -> tuple[bytes, ...]:
    return (PLANNING.read_bytes(),)


def read_planning_records(path: Path) -> None:
    """Read everything; the implementation plans nothing."""
    replay_planning(path, find_implementation("kvfast-uncompiled"))


def plans() -> tuple[bytes, ...]:
    """Return a plan of a model, and one of explicit layers."""
    return tuple(json.dumps(each).encode() for each in (SMALL, EXPLICIT))


def plan(path: Path) -> None:
    file = read_plan_file(path, {"engine.max_model_len": 64})
    assert REFERENCE.planner is not None
    make_report(file, REFERENCE, REFERENCE.planner)


def read_a_trace(path: Path) -> None:
    with TraceFile(str(path)) as trace:
        for _ in trace:
            pass


class Loop:
    """A stub for a child: replies here, or with recorded bytes; keeps both directions."""

    process_id = 1

    def __init__(self, command: tuple[str, ...], framing: str, said: list[bytes] | None) -> None:
        self.framing, self.said = framing, said
        self.session = ServerSession(REFERENCE)
        self.asked: list[bytes] = []
        self.answered: list[bytes] = []

    def exchange(self, framed: bytes, timeout_s: float, number: int = 1) -> Iterator[bytes]:
        buffer = MessageBuffer(self.framing)
        buffer.feed(framed)
        self.asked.append(framed)
        for _ in range(number):
            body = buffer.take()
            assert body is not None
            if self.said is not None:
                if not self.said:
                    raise ChildFailure("ended")
                yield self.said.pop(0)
                continue
            given = encode(answer(self.session, decode(body, self.framing)), self.framing)
            self.answered.append(given)
            own = MessageBuffer(self.framing)
            own.feed(given)
            found = own.take()
            assert found is not None
            yield found

    def end(self, grace_s: float = 0.0) -> bytes:
        return b""

    def last_words(self) -> str:
        return ""


def converse(framing: str, said: list[bytes] | None = None) -> Loop:
    loops: list[Loop] = []

    def start(command: tuple[str, ...], framing: str) -> Loop:
        loops.append(Loop(command, framing, None if said is None else said))
        return loops[-1]

    with mock.patch("kvcheck.remote.connection.Child", start):
        remote = RemoteImplementation(Options(("loop",), framing))
        manager = remote.create(config(enable_events=True, log_stats=True))
        request = remote.make_request(manager, request_input())
        hit = manager.get_computed_blocks(request)
        manager.allocate_slots(request, 5, num_new_computed_tokens=hit.hit_length_tokens)
        remote.append_tokens(manager, request, [6, 7])
        manager.num_free_blocks  # noqa: B018  # asked for
        manager.snapshot()
        manager.take_events()
        manager.make_prefix_cache_stats()
        manager.free(request)
    return loops[0]


def read_answers(path: Path) -> None:
    converse("json", path.read_bytes().split(b"\n"))


def read_messages(path: Path) -> None:
    """Read them as the server does: it reports bad ones in its replies, and ends."""
    with contextlib.redirect_stderr(io.StringIO()):
        ended = serve(REFERENCE, io.BytesIO(path.read_bytes()), io.BytesIO())
    if ended not in (0, 2):
        raise AssertionError(f"the server ended with {ended}")


_LAYERS = json.dumps({**SMALL, "model": {**SMALL["model"], "num_layers": 10**9}}).encode()
_REQUEST = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
_TRACE = (json.dumps(_REQUEST) + "\n" + json.dumps({**_REQUEST, "timestamp": 9}) + "\n").encode()

_ASKED = Asked("mine:implementation", "safety", "default", "kvref", ("*",))
_KNOWN = Finding("KV-SW-1", "KV-SW-1 answers", ("directed a", "vectors b"), "not yet", "it (Id)")

READERS: Mapping[str, Reader] = {
    "record": Reader("lines", records, read_record),
    "view": Reader("lines", records, view),
    "planning record": Reader("lines", planning_records, read_planning_records),
    "plan": Reader("document", plans, plan, (_LAYERS,)),
    "profile": Reader("toml", lambda: (_profile().read_bytes(),), read_profile),
    "known differences": Reader(
        "toml",
        lambda: (expected_text(_ASKED, [_KNOWN]).encode(),),
        lambda path: read_expected(path, _ASKED),
        (b"a." * 2**11 + b"a=1", b"[[a.a]]\n" * 2**15),
    ),
    "trace": Reader("lines", lambda: (_TRACE,), read_a_trace),
    "answers": Reader("messages", lambda: (b"".join(converse("json").answered),), read_answers),
    "messages": Reader("messages", lambda: (b"".join(converse("json").asked),), read_messages),
    "frames": Reader("frames", lambda: (b"".join(converse("cbor").asked),), read_messages),
}


def _profile() -> Path:
    import kvspec

    return Path(kvspec.__file__).parent / "data" / "profiles" / f"{RECORDS_PROFILE}.toml"
