"""Messages as OpenAI's interface takes them: batch files, chat data sets, agents' trajectories.

A line of a batch file is one request. In a data set every answer is one, tool calls included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.formats.conversation import (
    Message,
    Places,
    TextReader,
    content_text,
    requests,
)
from kvcheck.tools.replay.formats.input import Fields, json_objects
from kvcheck.tools.replay.formats.prompts import prompt_record
from kvcheck.tools.replay.formats.text import Prompt, role_token, tokens_of
from kvcheck.tools.replay.trace import TraceRecord

_FORM = (
    "messages is an object a line with messages, a list of objects with role and content, or with"
    " a body that has them (or a prompt)"
)
_LIMITS = ("max_completion_tokens", "max_tokens")


class MessagesReader(TextReader):
    """Tools stand in front of the prompt, where chat templates put them."""

    name = "messages"

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Object by object."""
        places = Places()
        for fields in json_objects(chunks, file, _FORM):
            if "body" in fields.value:
                yield self._batched(_body(fields), places)
                continue
            messages = [*_tools(fields), *_messages(fields)]
            yield from requests(messages, fields.line, places, self._notes)

    def _batched(self, body: Fields, places: Places) -> TraceRecord:
        """The one request of a line of a batch file."""
        limits = [body.count(name, 0) for name in _LIMITS if body.value.get(name) is not None]
        output_length = self._notes.output(None, most=min(limits, default=None))
        if "messages" not in body.value:
            return prompt_record(body, output_length, places, self._notes)
        prompt = Prompt()
        for message in (*_tools(body), *_messages(body)):
            prompt.add(tokens_of([role_token(message.role)]))
            prompt.add(self._notes.encode(message.text))
        if not prompt.length:
            raise body.error("messages", "must have at least one message")
        return prompt.record(*places.next(body.line), output_length)


def _body(fields: Fields) -> Fields:
    value = fields.get("body")
    if not isinstance(value, dict):
        raise fields.error("body", "must be an object")
    return Fields(value, fields.file, fields.line, fields.form, "body.")


def _messages(fields: Fields) -> Iterator[Message]:
    for each in fields.objects("messages"):
        text = content_text(each, "content") if "content" in each.value else ""
        if each.value.get("tool_calls"):
            text += json.dumps(each.value["tool_calls"], sort_keys=True)
        yield Message(each.text("role"), text)


def _tools(fields: Fields) -> tuple[Message, ...]:
    tools = fields.value.get("tools")
    return (Message("tools", json.dumps(tools, sort_keys=True)),) if tools else ()
