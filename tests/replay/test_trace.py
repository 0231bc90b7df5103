"""Reading traces: every compression, and one clear error for every kind of bad line."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.trace import TraceError, TraceRecord, select
from kvspec import _stream as stream
from kvspec.errors import InvalidArgumentError
from tests.replay.records import line, record

TWO_LINES = b"\n".join(
    json.dumps(fields).encode()
    for fields in (line(), line(timestamp=7, input_length=512, hash_ids=[9], extra="ignored"))
)
TWO_RECORDS = [TraceRecord(1, 0, 600, 5, (1, 2)), TraceRecord(2, 7, 512, 5, (9,))]


def read(path: Path, *, ordered: bool = False, form: str | None = None) -> list[TraceRecord]:
    with TraceFile(str(path), ordered=ordered, form=form) as trace:
        return list(trace)


def error_of(
    path: Path, content: bytes, *, ordered: bool = False, form: str | None = None
) -> TraceError:
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read(path, ordered=ordered, form=form)
    assert "\n" not in str(caught.value)
    return caught.value


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize(
    "content",
    [
        TWO_LINES,
        TWO_LINES + b"\n",
        gzip.compress(TWO_LINES),
        gzip.compress(TWO_LINES[:100]) + gzip.compress(TWO_LINES[100:]) + b"\0" * 8,
        zstd(TWO_LINES),
        zstd(TWO_LINES[:100]) + zstd(TWO_LINES[100:]),
    ],
    ids=["plain", "final newline", "gzip", "gzip members, padded", "zstd", "zstd frames"],
)
def test_the_first_bytes_decide_how_a_file_is_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any-name"
    path.write_bytes(content)
    assert read(path) == TWO_RECORDS


def test_empty_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n  \n" + TWO_LINES)
    assert [each.line for each in read(path)] == [3, 4]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"")
    assert read(path) == []


def test_standard_input_may_be_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.TextIOWrapper(io.BytesIO(gzip.compress(TWO_LINES)))
    monkeypatch.setattr(sys, "stdin", content)
    with TraceFile("-") as trace:
        assert list(trace) == TWO_RECORDS
        assert (trace.name, trace.total, trace.position) == ("standard input", None, 0)
    assert not content.closed


def test_a_named_pipe_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(TWO_LINES,))
    writer.start()
    with TraceFile(str(path)) as trace:
        assert trace.total is None
        assert list(trace) == TWO_RECORDS
    writer.join()


def test_progress_is_counted_in_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(TWO_LINES))
    with TraceFile(str(path)) as trace:
        assert trace.position == 0
        assert len(list(trace)) == 2
        assert trace.position == trace.total == path.stat().st_size


def test_a_long_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes((TWO_LINES + b"\n") * 2_000)
    with TraceFile(str(path)) as trace:
        next(iter(trace))
        assert trace.total is not None
        assert trace.position < trace.total / 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"timestamp": 1', "not JSON"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"[1, 2]", "not a JSON object"),
        (b"1" * 5_000, "an int of thousands of digits"),
        (b"1" * 400, "an int beyond 64 bits"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=["cut", "no UTF-8", "a list", "a huge number", "a large number", "deeply nested"],
)
def test_a_line_that_is_no_object_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    error = error_of(tmp_path / "t.jsonl", content, form="mooncake")
    assert (error.line, error.field) == (1, None)
    assert problem in error.problem


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvspec._stream.MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr("kvcheck.tools.replay.formats.input.MAX_LINE_BYTES", 1_000)
    path = tmp_path / "t.jsonl"
    assert "longer than 1000 bytes" in error_of(path, b" " * 100_000, form="mooncake").problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(TWO_LINES + b"\n")[:-9], "cut off"),
        (zstd(TWO_LINES + b"\n")[:-2], "cut off"),
        (b"\x1f\x8b" + b"\x99" * 50, "damaged"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 50, "damaged"),
    ],
    ids=["gzip cut off", "zstd cut off", "gzip", "zstd"],
)
def test_damaged_data_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    assert problem in error_of(tmp_path / "t", content).problem


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.jsonl: cannot be read: No such file"):
        TraceFile(str(tmp_path / "nothing.jsonl"))


def test_without_the_library_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install 'kvspec[zst]'" in error_of(tmp_path / "t", zstd(TWO_LINES)).problem


def test_timestamps_may_go_backwards_unless_they_order_the_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    content = b"\n".join(json.dumps(line(timestamp=each)).encode() for each in (5, 5, 4))
    error = error_of(path, content, ordered=True)
    assert (error.line, error.field) == (3, "timestamp")
    assert "--arrival ignore" in error.problem
    assert len(read(path)) == 3


def test_pieces_split_anywhere_give_the_same_lines() -> None:
    content = b"a\n\nbcd\ne"
    expected = [b"a", b"", b"bcd", b"e"]
    for size in range(1, len(content) + 1):
        chunks = [content[start : start + size] for start in range(0, len(content), size)]
        assert list(stream.split_lines(chunks)) == expected


NUMBERED = [record(number, [0], 10) for number in range(1, 10_001)]


def test_which_lines_are_sampled_never_changes() -> None:
    # SHA-256("kvspec-sample:1") begins with ed, so line 1 is kept from 0xed / 256 = 0.926 on.
    assert [each.line for each in select(NUMBERED[:40], sample=0.1)] == [8, 21, 37]
    assert next(select(NUMBERED, sample=0.925)).line > 1
    assert next(select(NUMBERED, sample=0.935)).line == 1


def test_the_limit_counts_kept_records_and_stops_reading() -> None:
    source = iter(NUMBERED)
    kept = list(select(source, sample=0.5, limit=3))
    assert len(kept) == 3
    assert next(source).line == kept[-1].line + 1


@pytest.mark.parametrize(
    "options", [*({"sample": share} for share in (0.0, -0.1, 1.1, float("nan"))), {"limit": 0}]
)
def test_what_is_no_share_and_no_limit_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        select(NUMBERED, **options)
