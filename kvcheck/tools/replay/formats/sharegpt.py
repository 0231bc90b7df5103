"""ShareGPT's conversations, as `vllm bench serve --dataset-name sharegpt` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.formats.conversation import Message, Places, TextNotes, requests
from kvcheck.tools.replay.formats.input import json_objects
from kvcheck.tools.replay.formats.text import Tokenizer
from kvcheck.tools.replay.trace import TraceRecord

_FORM = "sharegpt is a list of objects with conversations, a list of objects with from and value"


class ShareGPTReader:
    """All turns of a conversation are requests; vLLM's benchmark takes the first two messages."""

    name = "sharegpt"
    has_times = False

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._notes = TextNotes(tokenizer)

    @property
    def notes(self) -> tuple[str, ...]:
        """See `TextNotes`."""
        return self._notes.sentences(has_roles=True)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Conversation by conversation."""
        places = Places()
        for conversation in json_objects(chunks, file, _FORM):
            turns = conversation.objects("conversations")
            messages = [Message(each.text("from"), each.text("value")) for each in turns]
            yield from requests(messages, conversation.line, places, self._notes)
