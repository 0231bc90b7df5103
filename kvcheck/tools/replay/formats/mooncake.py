"""Mooncake's traces: one JSON object a line, with an id for every 512 input tokens; and Alibaba's
of Qwen on Bailian, with seconds and an id for 16 tokens.

Other tools write this format with other run lengths, with fractions of milliseconds, without an id
for a last run that is cut, and in sessions: there a line has the tokens of one turn, after a prompt
of all earlier tokens of the session.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvcheck.tools.replay.formats.input import Fields, cut_note, json_lines
from kvcheck.tools.replay.formats.text import Prompt, hashed, tokens_of
from kvcheck.tools.replay.tokens import OUTPUT_TOKEN_BASE, run_tokens
from kvcheck.tools.replay.trace import NO_OUTPUTS, RUN_LENGTH_TOKENS, TraceRecord

_FORM = (
    "a line of mooncake has timestamp (ms), input_length, output_length, hash_ids (one for each"
    " run of the input: 512 tokens, or --run-length), or session_id and delay (ms) for a timestamp"
)


@dataclass
class _Session:
    """A session so far: its prompt with all answers, and the time of its last turn."""

    timestamp_ms: int
    prompt: Prompt = field(default_factory=Prompt)


class MooncakeReader:
    """Read lines of `run_length` tokens an id; generated tokens are unknown (spec/replay.md)."""

    name = "mooncake"
    has_times = True

    def __init__(self, run_length: int | None = None) -> None:
        self._run_length = run_length or RUN_LENGTH_TOKENS
        self._without_id = 0
        self._without_time = 0
        self._sessions: dict[str, _Session] = {}
        self._latest_ms = 0
        self._num_answered = 0  # tokens of answers in sessions

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what the lines leave open."""
        found: list[str] = []
        if self._sessions:
            found.append("a turn's prompt is all of its session so far, with what was generated")
        else:
            found.append(NO_OUTPUTS)
        if self._without_time:
            found.append(
                f"turns without a timestamp: {self._without_time:,}; each comes its delay after the"
                " turn before it, and a session after what stands before it in the file"
            )
        if self._without_id:
            found.append(cut_note(self._without_id))
        return tuple(found)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield a record for every line; unknown fields are ignored."""
        in_sessions: bool | None = None
        for fields in json_lines(chunks, file, _FORM):
            has_session = "session_id" in fields.value
            in_sessions = has_session if in_sessions is None else in_sessions
            if has_session != in_sessions:
                raise fields.error("session_id", "must be in every line, or in none")
            record = self._turn(fields) if in_sessions else self._request(fields)
            yield fields.labelled(record, "tenant", 1)

    def _request(self, fields: Fields) -> TraceRecord:
        """Return the request of a line that is whole."""
        timestamp_ms = fields.milliseconds("timestamp", "milliseconds")
        input_length, output_length, ids = self._lengths(fields)
        run = self._run_length
        return TraceRecord(fields.line, timestamp_ms, input_length, output_length, ids, run)

    def _turn(self, fields: Fields) -> TraceRecord:
        """Return the request of a turn: what the session had before it, and its own tokens."""
        name = json.dumps(fields.get("session_id"))
        session = self._sessions.get(name)
        if fields.value.get("timestamp") is not None:
            now_ms = fields.milliseconds("timestamp", "milliseconds")
        else:
            self._without_time += 1
            began_ms = self._latest_ms if session is None else session.timestamp_ms
            has_delay = fields.value.get("delay") is not None
            now_ms = began_ms + (fields.milliseconds("delay", "milliseconds") if has_delay else 0)
        if session is None:
            session = self._sessions[name] = _Session(now_ms)
        session.timestamp_ms, self._latest_ms = now_ms, max(now_ms, self._latest_ms)
        input_length, output_length, ids = self._lengths(fields)
        own: array[int] = array("I")
        for run_id in ids:
            own.extend(tokens_of(run_tokens(run_id, self._run_length)))
        session.prompt.add(own[:input_length])
        first = OUTPUT_TOKEN_BASE + self._num_answered
        self._num_answered += output_length
        answer = tokens_of(range(first, first + output_length))
        record = session.prompt.record(fields.line, 0, answer, timestamp_ms=now_ms)
        session.prompt.add(answer)
        return record

    def _lengths(self, fields: Fields) -> tuple[int, int, tuple[int, ...]]:
        """Return input and output length, and an id for each run of the input."""
        input_length = fields.count("input_length", 1)
        output_length = fields.count("output_length", 0)
        ids = fields.run_ids(input_length, self._run_length, last_may_lack=True)
        if len(ids) * self._run_length < input_length:
            self._without_id += 1
            ids = (*ids, hashed(b"cut:%d" % fields.line))
        return input_length, output_length, ids


_BAILIAN_RUN = 16
_BAILIAN_FORM = (
    "a line of bailian has chat_id, timestamp (seconds), input_length, output_length,"
    " hash_ids (16 tokens)"
)


class BailianReader:
    """Every line is a whole request, earlier turns included; what links turns isn't needed."""

    name = "bailian"
    has_times = True
    notes: tuple[str, ...] = (NO_OUTPUTS,)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield a record for every line."""
        for fields in json_lines(chunks, file, _BAILIAN_FORM):
            timestamp = fields.milliseconds("timestamp")
            input_length = fields.count("input_length", 1)
            output_length = fields.count("output_length", 0)
            ids = fields.run_ids(input_length, _BAILIAN_RUN)
            yield TraceRecord(
                fields.line, timestamp, input_length, output_length, ids, _BAILIAN_RUN
            )


def record_line(record: TraceRecord) -> str:
    """Return the record as one line of such a trace, without the line feed."""
    return json.dumps(
        {
            "timestamp": record.timestamp_ms,
            "input_length": record.input_length,
            "output_length": record.output_length,
            "hash_ids": list(record.hash_ids),
        }
    )
