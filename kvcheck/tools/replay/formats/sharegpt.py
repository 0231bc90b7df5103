"""ShareGPT's conversations, as `vllm bench serve --dataset-name sharegpt` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.formats.conversation import Message, Places, TextReader, requests
from kvcheck.tools.replay.formats.input import json_objects
from kvcheck.tools.replay.trace import TraceRecord

_FORM = "sharegpt is a list of objects with conversations, a list of objects with from and value"


class ShareGPTReader(TextReader):
    """Reads all turns of a conversation as requests; vLLM's benchmark reads two messages."""

    name = "sharegpt"

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield the requests of each conversation."""
        places = Places()
        for conversation in json_objects(chunks, file, _FORM):
            turns = conversation.objects("conversations")
            messages = [Message(each.text("from"), each.text("value")) for each in turns]
            yield from requests(messages, conversation.line, places, self._notes)
