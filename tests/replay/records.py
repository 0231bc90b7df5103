"""Short ways to write trace records in tests."""

from __future__ import annotations

from kvcheck.tools.replay.trace import TraceRecord


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
