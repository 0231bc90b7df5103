"""Texts as `vllm bench serve` reads them: prompts, an object a line (`--dataset-name custom`), and
ShareGPT's conversations (`sharegpt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.formats.conversation import (
    Message,
    Places,
    TextNotes,
    TextReader,
    requests,
)
from kvcheck.tools.replay.formats.input import Fields, json_lines, json_objects
from kvcheck.tools.replay.formats.text import Prompt
from kvcheck.tools.replay.trace import TraceRecord

_FORM = "a line of prompts has prompt, a text or a list of tokens, and may have output_tokens"
_CHATS = "sharegpt is a list of objects with conversations, a list of objects with from and value"


class PromptsReader(TextReader):
    """Prompts that are lists of tokens are exact."""

    name = "prompts"

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield a record for every line."""
        places = Places()
        for fields in json_lines(chunks, file, _FORM):
            is_known = fields.value.get("output_tokens") is not None
            output_length = fields.count("output_tokens", 0) if is_known else None
            prompt = prompt_of(fields, self._notes)
            yield prompt.record(*places.next(fields.line), self._notes.output(output_length))


def prompt_of(fields: Fields, notes: TextNotes) -> Prompt:
    """Return the prompt of an object with `prompt`, a text or tokens."""
    prompt = notes.prompt()
    if isinstance(fields.get("prompt"), str):
        prompt.add(notes.encode(fields.text("prompt")))
    else:
        prompt.add(fields.tokens("prompt"))
    if not prompt.length:
        raise fields.error("prompt", "must not be empty")
    return prompt


class ShareGPTReader(TextReader):
    """Reads all turns of a conversation as requests; vLLM's benchmark reads two messages."""

    name = "sharegpt"

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield the requests of each conversation."""
        places = Places()
        for conversation in json_objects(chunks, file, _CHATS):
            turns = conversation.objects("conversations")
            messages = [Message(each.text("from"), each.text("value")) for each in turns]
            yield from requests(messages, conversation.line, places, self._notes)
