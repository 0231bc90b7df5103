"""Trace records and files of the tests, in few words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from kvcheck.tools.replay.formats.choice import reader_of
from kvcheck.tools.replay.trace import TraceError, TraceRecord


def record(
    line: int,
    ids: list[int],
    input_length: int,
    output_length: int = 1,
    *,
    timestamp_ms: int = 0,
    output: tuple[int, ...] | None = None,
) -> TraceRecord:
    """Make a request; `ids` must be one per 512 tokens of its input, `output` those behind."""
    return TraceRecord(
        line, timestamp_ms, input_length, output_length, tuple(ids), output_ids=output
    )


def line(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "timestamp": 0,
        "input_length": 600,
        "output_length": 5,
        "hash_ids": [1, 2],
    }
    return {**fields, **changes}


def read(form: str, content: str, *, chunk_bytes: int = 1_000) -> list[TraceRecord]:
    data = content.encode("utf-8", errors="surrogatepass")
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    return list(reader_of(form).records(chunks, "t"))


def lines_of(objects: Sequence[object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def error_of(form: str, content: str) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(form, content)
    assert caught.value.file == "t"
    assert "\n" not in str(caught.value)
    return caught.value
