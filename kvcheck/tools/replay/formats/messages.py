"""Messages in OpenAI's format: request logs, batch files, chat data sets.

A line of a batch file or of a log of requests is one request. In a data set and in an agent's
trajectory every answer is one, including tool calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from kvcheck.tools.replay.formats.conversation import (
    ANSWERS,
    Message,
    Places,
    TextReader,
    content_text,
    requests,
)
from kvcheck.tools.replay.formats.input import Fields, json_objects
from kvcheck.tools.replay.formats.prompts import prompt_record
from kvcheck.tools.replay.formats.text import Tokenizer
from kvcheck.tools.replay.trace import TraceRecord

_FORM = (
    "messages is an object a line with messages, a list of objects with role and content, or with"
    " a body that has them (or a prompt)"
)
_BODIES = ("body", "request_body", "request")
"""Members with a whole request inside: of batch files, and of logs that proxies write."""
_LIMITS = ("max_completion_tokens", "max_tokens")
_ANSWERED = ("response", "response_body")
_OF_REQUESTS = frozenset(
    {*_LIMITS, *_ANSWERED, "stream", "temperature", "top_p", "n", "stop", "seed"}
)
"""Members that only a request has; a data set has only messages, or other names."""
_MAX_OPEN = 2**20
"""Most remembered prompts without an answer, 32 bytes each."""


class MessagesReader(TextReader):
    """Tools are in front of the prompt, where chat templates put them."""

    name = "messages"

    def __init__(self, tokenizer: Tokenizer | None, run_length: int | None = None) -> None:
        super().__init__(tokenizer, run_length)
        self._requests = 0
        self._open: dict[bytes, None] = {}  # digests of prompts that ended without an answer

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on all texts, and whether lines were read as requests."""
        if not self._requests:
            return super().notes
        said = f"lines that are one request each, with all messages before it: {self._requests:,}"
        return (*super().notes, said)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield the requests of each object."""
        places = Places()
        for fields in json_objects(chunks, file, _FORM):
            body = _body(fields)
            if body is not fields:
                yield self._batched(body, places, _generated(fields))
                continue
            messages = [*_tools(fields), *_messages(fields)]
            if not _OF_REQUESTS.isdisjoint(fields.value) or self._goes_on(messages):
                self._requests += 1
                yield self._batched(fields, places, _generated(fields))
            else:
                yield from requests(messages, fields.line, places, self._notes)

    def _goes_on(self, messages: Sequence[Message]) -> bool:
        """Return whether an earlier line ended, without an answer, as these messages begin.

        That line was a request, so this one is the next request of the same chat, and its earlier
        answers are not requests.
        """
        seen, found = sha256(), False
        for number, message in enumerate(messages, 1):
            found = found or (message.role in ANSWERS and seen.digest() in self._open)
            seen.update(json.dumps((message.role, message.text)).encode())
            if number == len(messages) and message.role not in ANSWERS:
                self._open[seen.digest()] = None
        if len(self._open) > _MAX_OPEN:
            del self._open[next(iter(self._open))]
        return found

    def _batched(self, body: Fields, places: Places, generated: int | None) -> TraceRecord:
        """Return the one request of a line: of a batch file, or of a log of requests.

        `generated`: the tokens of its output, if the line says so.
        """
        limits = [body.count(name, 0) for name in _LIMITS if body.value.get(name) is not None]
        output_length = self._notes.output(generated, most=min(limits, default=None))
        if "messages" not in body.value:
            record = prompt_record(body, output_length, places, self._notes)
            return body.labelled(record, "user", -1)
        prompt = self._notes.prompt()
        for message in (*_tools(body), *_messages(body)):
            prompt.add(self._notes.role(message.role))
            prompt.add(self._notes.encode(message.text))
        if not prompt.length:
            raise body.error("messages", "must have at least one message")
        record = prompt.record(*places.next(body.line), output_length)
        return body.labelled(record, "user", -1)


def _body(fields: Fields) -> Fields:
    """Return the request inside of the line, or the line."""
    for name in _BODIES:
        value = fields.value.get(name)
        if isinstance(value, dict):
            return Fields(value, fields.file, fields.line, fields.form, f"{name}.")
    if "body" in fields.value:
        raise fields.error("body", "must be an object")
    return fields


def _generated(fields: Fields) -> int | None:
    """Return the `usage.completion_tokens` of the answer beside a request, if there is one."""
    for name in _ANSWERED:
        answer = fields.value.get(name)
        answer = answer.get("body", answer) if isinstance(answer, dict) else None
        usage = answer.get("usage") if isinstance(answer, dict) else None
        found = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if type(found) is int and found >= 0:
            return found
    return None


def _messages(fields: Fields) -> Iterator[Message]:
    is_lmsys = "conversation" in fields.value and "messages" not in fields.value
    name = "conversation" if is_lmsys else "messages"
    for each in fields.objects(name):
        text = content_text(each, "content") if "content" in each.value else ""
        if each.value.get("tool_calls"):
            text += json.dumps(each.value["tool_calls"], sort_keys=True)
        yield Message(each.text("role"), text)


def _tools(fields: Fields) -> tuple[Message, ...]:
    tools = fields.value.get("tools")
    return (Message("tools", json.dumps(tools, sort_keys=True)),) if tools else ()
