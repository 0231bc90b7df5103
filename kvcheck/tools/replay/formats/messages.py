"""Messages in OpenAI's format: request logs, batch files, chat data sets.

A line of a batch file or of a log of requests is one request. In a data set and in an agent's
trajectory every answer is one, including tool calls.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from kvcheck.tools.replay.formats.conversation import (
    ANSWER,
    ANSWERS,
    Message,
    Places,
    TextReader,
    content_text,
    requests,
)
from kvcheck.tools.replay.formats.input import Fields, json_objects
from kvcheck.tools.replay.formats.prompts import prompt_of
from kvcheck.tools.replay.formats.text import MOST_WAITING, Prompt, Tokenizer
from kvcheck.tools.replay.trace import TraceRecord

_FORM = (
    "messages is an object a line with messages, a list of objects with role and content, or with"
    " a body that has them (or a prompt)"
)
_BODIES = ("body", "request_body", "request")
"""Members with a whole request inside: of batch files, and of logs that proxies write."""
_LIMITS = ("max_completion_tokens", "max_tokens")
_ANSWERED = ("response", "response_body")
_TIMES = ("timestamp", "startTime", "start_time", "created_at", "created")
"""Members with the time of a request, of its line or its answer, the first that there is."""
_IN_MILLISECONDS = 1e11
"""A larger number of a time counts milliseconds: in seconds it is the year 5138."""
_OF_REQUESTS = frozenset(
    {*_LIMITS, *_ANSWERED, "stream", "temperature", "top_p", "n", "stop", "seed"}
)
"""Members that only a request has; a data set has only messages, or other names."""
_MAX_OPEN = 2**20
"""Most remembered prompts without an answer, 100 bytes each."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A request, without its output. `most`: the longest that it allows.

    `output`: its tokens or their number, as far as known. `waits`: a later line, whose messages
    begin with those of this `digest`, may say it.
    """

    prompt: Prompt
    record: TraceRecord
    most: int | None
    output: int | array[int] | None
    digest: bytes
    waits: bool


class MessagesReader(TextReader):
    """Tools are in front of the prompt, where chat templates put them."""

    name = "messages"
    has_times = True
    _began_ms: float | None = None

    def __init__(self, tokenizer: Tokenizer | None, run_length: int | None = None) -> None:
        super().__init__(tokenizer, run_length)
        self._requests = 0
        self._places = Places()
        # By the digest of a prompt that ended without an answer: the requests that wait for it.
        # None stands for one that was yielded with its answer.
        self._open: dict[bytes, list[_Asked | None]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on all texts, and whether lines were read as requests."""
        if not self._requests:
            return super().notes
        said = f"lines that are one request each, with all messages before it: {self._requests:,}"
        return (*super().notes, said)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield the requests of each object, in order, each when its output is known."""
        waiting = deque[TraceRecord | _Asked]()
        for fields in json_objects(chunks, file, _FORM):
            waiting.extend(self._read(fields))
            yield from self._ready(waiting, MOST_WAITING)
        yield from self._ready(waiting, 0)

    def _ready(self, waiting: deque[TraceRecord | _Asked], most: int) -> Iterator[TraceRecord]:
        while waiting:
            first = waiting[0]
            if isinstance(first, _Asked):
                if first.waits and len(waiting) <= most:
                    return
                self._forget(first)
                output = self._notes.output(first.output, most=first.most)
                place, known = (first.record.line, first.record.part), first.record
                made = first.prompt.record(*place, output, timestamp_ms=known.timestamp_ms)
                first = replace(made, tenant=known.tenant, priority=known.priority)
            waiting.popleft()
            yield first

    def _read(self, fields: Fields) -> Iterator[TraceRecord | _Asked]:
        """Yield the requests of an object."""
        body = _body(fields)
        is_request = body is not fields
        if is_request and "messages" not in body.value:
            yield self._asked(fields, body, prompt_of(body, self._notes), b"")
            return
        messages = [*_tools(body), *_messages(body)]
        found, unknown, digest = self._goes_on(messages)
        if not is_request and (found or not _OF_REQUESTS.isdisjoint(fields.value)):
            self._requests += 1
            is_request = True
        if is_request and not messages:
            raise body.error("messages", "must have at least one message")
        self._notes.unknown += unknown if is_request else 0
        answers = (n for n, message in enumerate(messages, 1) if message.role in ANSWERS)
        answered = 0 if is_request else max(answers, default=0)
        for record in requests(messages[:answered], fields.line, self._places, self._notes):
            self.has_times = False
            yield record
        if answered < len(messages):
            yield self._asked(fields, body, self._prompt(messages), digest)

    def _prompt(self, messages: Sequence[Message]) -> Prompt:
        prompt = self._notes.prompt()
        for message in messages:
            prompt.add(self._notes.role(message.role))
            prompt.add(self._notes.encode(message.text))
        prompt.add(self._notes.role(ANSWER))
        return prompt

    def _asked(self, fields: Fields, body: Fields, prompt: Prompt, digest: bytes) -> _Asked:
        """Return the request of a line, with its output as far as the line says it."""
        limits = [body.count(name, 0) for name in _LIMITS if body.value.get(name) is not None]
        at_ms = self._arrival_ms(fields)
        made = prompt.record(*self._places.next(body.line), 0, timestamp_ms=at_ms)
        record = body.labelled(made, "user", -1)
        text, number, may_follow, usage = _generated(fields)
        if type(said := usage.get("prompt_tokens")) is int:
            cached = _member(usage, "prompt_tokens_details").get("cached_tokens")
            self._notes.prompts_said += said
            self._notes.cached_said += cached if type(cached) is int else 0
            self._notes.prompts_counted += prompt.length
        output = number if text is None else self._notes.encode(text)
        waits = text is None and may_follow and bool(digest)
        found = _Asked(prompt, record, min(limits, default=None), output, digest, waits)
        if digest:
            self._open.setdefault(digest, []).append(found)
        if len(self._open) > _MAX_OPEN:
            del self._open[next(iter(self._open))]
        return found

    def _arrival_ms(self, fields: Fields) -> int:
        """Return the time since the first request; 0 without, and then the data has no times."""
        answers = (_member(fields.value, name) for name in _ANSWERED)
        found = (
            _milliseconds(each.get(name)) for each in (fields.value, *answers) for name in _TIMES
        )
        now_ms = next((each for each in found if each is not None), None)
        if now_ms is None:
            self.has_times = False
            return 0
        self._began_ms = now_ms if self._began_ms is None else self._began_ms
        return round(now_ms - self._began_ms)

    def _forget(self, asked: _Asked) -> None:
        """Keep of a request only that there was one, and whether its answer was known."""
        asked.waits = False
        if asked in (same := self._open.get(asked.digest, [])):
            same.remove(asked)
            if isinstance(asked.output, array) and None not in same:
                same.append(None)

    def _goes_on(self, messages: Sequence[Message]) -> tuple[bool, int, bytes]:
        """Return whether an earlier line ended, without an answer, as these messages begin.

        That line was a request, so this one is the next request of the same chat, and its earlier
        answers are not requests. The message behind is the answer, where the line has none. Also
        returns the tokens of later answers, which no request generated; and the digest of messages
        that wait for an answer, or none.
        """
        seen, found, unknown = sha256(), False, 0
        for message in messages:
            if message.role in ANSWERS:
                output, asked = self._notes.encode(message.text), self._open.get(seen.digest())
                found = found or asked is not None
                is_known = asked is not None and self._answer(asked, output)
                unknown = 0 if is_known else unknown + len(output)
            seen.update(json.dumps((message.role, message.text)).encode())
        is_open = bool(messages) and messages[-1].role not in ANSWERS
        return found, unknown, seen.digest() if is_open else b""

    def _answer(self, asked: Sequence[_Asked | None], output: array[int]) -> bool:
        """Give an answer to the first of these requests that waits for one, unless one has it.

        Returns whether one of them generates it.
        """
        if any(each is not None and each.output == output for each in asked):
            return True
        first = next((each for each in asked if each is not None and each.waits), None)
        if first is not None:
            first.output, first.waits = output, False
        return first is not None or None in asked


def _body(fields: Fields) -> Fields:
    """Return the request inside of the line, or the line."""
    for name in _BODIES:
        if isinstance(fields.value.get(name), dict):
            return fields.inner(name)
    return fields.inner("body") if "body" in fields.value else fields


def _generated(fields: Fields) -> tuple[str | None, int | None, bool, dict[str, Any]]:
    """Return what the answer beside a request says: its text, its tokens, whether a prompt may
    repeat it, and its usage.

    Thoughts come before the text, and no later prompt has them: it repeats nothing of the answer.
    """
    for name in _ANSWERED:
        answer = _member(fields.value, name)
        answer = _member(answer, "body") or answer
        usage, choices = _member(answer, "usage"), answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        message = _member(choice if isinstance(choice, dict) else {}, "message")
        found = usage.get("completion_tokens")
        number = found if type(found) is int and found >= 0 else None
        thoughts = _member(usage, "completion_tokens_details").get("reasoning_tokens")
        if thoughts or message.get("reasoning_content") or message.get("reasoning"):
            return None, number, False, usage
        if message:
            content = Fields(message, fields.file, fields.line, fields.form, f"{name}.message.")
            return _text(content), number, True, usage
        if number is not None:
            return None, number, True, usage
    return None, None, True, {}


def _milliseconds(value: object) -> float | None:
    """Return a time in ISO 8601, or in seconds or milliseconds since 1970; None for no time."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return 1000 * (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value if value > _IN_MILLISECONDS else 1000 * value)


def _member(value: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is an object; an empty one if it is not."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _messages(fields: Fields) -> Iterator[Message]:
    is_lmsys = "conversation" in fields.value and "messages" not in fields.value
    name = "conversation" if is_lmsys else "messages"
    for each in fields.objects(name):
        yield Message(each.text("role"), _text(each))


def _text(message: Fields) -> str:
    """Return what a message says, its tool calls as JSON."""
    text = content_text(message, "content") if "content" in message.value else ""
    calls = message.value.get("tool_calls")
    return text + json.dumps(calls, sort_keys=True) if calls else text


def _tools(fields: Fields) -> tuple[Message, ...]:
    tools = fields.value.get("tools")
    return (Message("tools", json.dumps(tools, sort_keys=True)),) if tools else ()
