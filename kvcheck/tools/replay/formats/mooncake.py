"""Mooncake's traces: one JSON object a line, with an id for every 512 input tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.formats.input import json_lines
from kvcheck.tools.replay.trace import RUN_LENGTH_TOKENS, TraceRecord

_FORM = "a line of mooncake has timestamp (ms), input_length, output_length, hash_ids (512 tokens)"


class MooncakeReader:
    """All of it is exact, but what was generated: see spec/replay.md."""

    name = "mooncake"
    has_times = True
    notes: tuple[str, ...] = ()

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """One for every line; unknown fields are ignored."""
        for fields in json_lines(chunks, file, _FORM):
            timestamp = fields.count("timestamp", 0)
            input_length = fields.count("input_length", 1)
            output_length = fields.count("output_length", 0)
            ids = fields.run_ids(input_length, RUN_LENGTH_TOKENS)
            yield TraceRecord(fields.line, timestamp, input_length, output_length, ids)


def record_line(record: TraceRecord) -> str:
    """The record as one line of such a trace, without the line feed."""
    return json.dumps(
        {
            "timestamp": record.timestamp_ms,
            "input_length": record.input_length,
            "output_length": record.output_length,
            "hash_ids": list(record.hash_ids),
        }
    )
