"""Sessions of coding agents as recorded by Weka's kv-cache-tester: one JSON object a session.

It contains the requests in order, those of subagents nested. An id represents `block_size` tokens,
and has the same meaning everywhere in its session, but none outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvcheck.tools.replay.formats.input import Fields, cut_note, json_objects
from kvcheck.tools.replay.formats.text import hashed
from kvcheck.tools.replay.trace import NO_OUTPUTS, TraceRecord

_FORM = (
    "a session of weka has id, block_size and requests with t (seconds), type, in, out and"
    " hash_ids (block_size tokens)"
)
_SUBAGENT = "subagent"


@dataclass(frozen=True)
class _Call:
    """One request, and its arrival, in milliseconds from the start of its session."""

    fields: Fields
    at_ms: int


class WekaReader:
    """Sessions are laid end to end: nothing says how they overlapped."""

    name = "weka"
    has_times = True

    def __init__(self) -> None:
        self._sessions = self._unknown = self._cut = 0
        self._hashed: dict[int, int] = {}  # ids of this session

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how sessions follow each other, and on requests without content."""
        found: tuple[str, ...] = (NO_OUTPUTS,)
        if self._sessions > 1:
            found += (
                f"the {self._sessions:,} sessions follow each other: the data has no times between"
                " them, and at once they would share the pool",
            )
        if self._cut:
            found += (cut_note(self._cut),)
        if self._unknown:
            found += (f"requests without hash_ids, which share no prefix: {self._unknown:,}",)
        return found

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield all requests of a session by their times, then the next session."""
        began_ms, line, part, run_length = 0, 0, 0, 0
        for session in json_objects(chunks, file, _FORM):
            self._sessions += 1
            self._hashed.clear()
            run_length = _run_length(session, run_length)
            end_ms = began_ms
            for call in sorted(_calls(session), key=lambda each: each.at_ms):
                part = part + 1 if line == session.line else 0
                line, end_ms = session.line, began_ms + call.at_ms
                input_length = call.fields.count("in", 1)
                ids = tuple(self._ids(call.fields, input_length, run_length))
                output_length = call.fields.count("out", 0)
                yield TraceRecord(line, end_ms, input_length, output_length, ids, run_length, part)
            began_ms = end_ms

    def _ids(self, fields: Fields, input_length: int, run_length: int) -> Iterator[int]:
        """Yield the ids of one request, different from those of all other sessions."""
        if fields.value.get("hash_ids"):
            ids = fields.run_ids(input_length, run_length, last_may_lack=True)
            for run_id in ids:
                if run_id not in self._hashed:
                    self._hashed[run_id] = hashed(b"%d:%d" % (self._sessions, run_id))
                yield self._hashed[run_id]
            if len(ids) * run_length < input_length:
                self._cut += 1
                yield hashed(b"%d.cut:%d" % (self._sessions, self._cut))
            return
        self._unknown += 1
        for run in range(-(-input_length // run_length)):
            yield hashed(b"%d.%d:%d" % (self._sessions, self._unknown, run))


def _run_length(session: Fields, before: int) -> int:
    """Return the tokens of an id; the same in all sessions."""
    found = session.count("block_size", 1)
    if before and found != before:
        problem = f"is {found}, but {before} in the sessions before it; split the file"
        raise session.error("block_size", problem)
    return found


def _calls(session: Fields) -> Iterator[_Call]:
    """Return the requests of a session and of its subagents.

    In some files times of subagents count from their start, in others from that of the session: if
    one of them were before its subagent began, all are of the first kind.
    """
    nested: list[tuple[int, list[_Call]]] = []
    for entry in session.objects("requests"):
        at_ms = entry.milliseconds("t")
        if entry.text("type") != _SUBAGENT:
            yield _Call(entry, at_ms)
            continue
        own = [_Call(each, each.milliseconds("t")) for each in entry.objects("requests")]
        nested.append((at_ms, own))
    is_relative = any(call.at_ms < at_ms for at_ms, own in nested for call in own)
    for at_ms, own in nested:
        for call in own:
            yield _Call(call.fields, call.at_ms + at_ms if is_relative else call.at_ms)
