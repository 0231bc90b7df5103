"""Alibaba's traces of Qwen on Bailian: like Mooncake's, with seconds, and an id for 16 tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.formats.input import json_lines
from kvcheck.tools.replay.trace import NO_OUTPUTS, TraceRecord

RUN_LENGTH = 16

_FORM = (
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
        for fields in json_lines(chunks, file, _FORM):
            timestamp = fields.milliseconds("timestamp")
            input_length = fields.count("input_length", 1)
            output_length = fields.count("output_length", 0)
            ids = fields.run_ids(input_length, RUN_LENGTH)
            yield TraceRecord(fields.line, timestamp, input_length, output_length, ids, RUN_LENGTH)
