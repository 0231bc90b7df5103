"""Records of traces: reading them in every compression, generating them, and their tokens."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import astuple
from itertools import islice
from pathlib import Path

import pytest
import zstandard

from kvcheck.tools.replay.arrivals import Arrivals
from kvcheck.tools.replay.explain import Explainer, Reason
from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.tokens import prompt_tokens, run_tokens
from kvcheck.tools.replay.trace import TraceError, TraceRecord, select
from kvspec.files import stream
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


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvspec.files.stream.MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr("kvcheck.tools.replay.formats.input.MAX_LINE_BYTES", 1_000)
    path = tmp_path / "t.jsonl"
    assert "longer than 1000 bytes" in error_of(path, b" " * 100_000, form="mooncake").problem


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


def timed(line: int, timestamp: int) -> TraceRecord:
    return TraceRecord(line, timestamp, 10, 1, (line,))


TRACE = [timed(line, 10 * line) for line in range(1, 8)]


def test_who_looks_ahead_gets_the_same_records() -> None:
    arrivals = Arrivals(TRACE)
    found: list[TraceRecord] = []
    for clock in range(0, 100, 7):
        arrivals.num_due(clock)
        found += [next(arrivals)] if len(found) < len(TRACE) else []
    assert found == TRACE == list(Arrivals(TRACE))


def test_those_up_to_the_clock_are_due_and_no_more_than_one_beyond_is_read() -> None:
    read: list[int] = []

    def source() -> Iterator[TraceRecord]:
        for each in TRACE:
            read.append(each.line)
            yield each

    arrivals = Arrivals(source())
    assert [arrivals.num_due(clock) for clock in (0, 10, 29, 30)] == [0, 1, 2, 3]
    assert read == [1, 2, 3, 4]
    assert next(arrivals) == TRACE[0]
    assert arrivals.num_due(30) == 2
    assert arrivals.num_due(10**6) == 6
    assert [each.line for each in arrivals] == [2, 3, 4, 5, 6, 7]
    assert arrivals.num_due(10**6) == 0


def test_a_bad_record_is_raised_when_it_is_its_turn() -> None:
    def source() -> Iterator[TraceRecord]:
        yield TRACE[0]
        raise TraceError("t", 2, None, "is not JSON")

    arrivals = Arrivals(source())
    assert arrivals.num_due(10**6) == 1
    assert next(arrivals) == TRACE[0]
    with pytest.raises(TraceError, match="is not JSON"):
        next(arrivals)


KINDS = ["chat", "agent", "rag"]


def some(kind: str, requests: int = 500, *, seed: int = 1) -> list[TraceRecord]:
    return list(SynthTrace(f"synth:{kind}?requests={requests}&seed={seed}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_one_trace(kind: str) -> None:
    assert some(kind) == some(kind)
    assert some(kind) != some(kind, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_trace_begins_with_the_shorter_one(kind: str) -> None:
    assert some(kind, 50) == some(kind, 200)[:50]
    endless = SynthTrace(f"synth:{kind}", seed=1, endless=True)
    assert list(islice(endless, 50)) == some(kind, 50)
    assert (endless.total, endless.position) == (None, 50)


def test_the_traces_never_change() -> None:
    assert some("chat", 2) == [
        TraceRecord(1, 67, 1721, 114, (3, 4, 5, 10)),
        TraceRecord(2, 114, 1792, 55, (3, 4, 5, 11)),
    ]
    digests = {
        kind: hashlib.sha256(
            repr([astuple(each)[:5] for each in some(kind, 1_000)]).encode()
        ).hexdigest()[:16]
        for kind in KINDS
    }
    assert digests == {
        "chat": "667591eb82d33a2a",
        "agent": "ab8b6c67d9b229f1",
        "rag": "74ff68667372060f",
    }


def test_the_name_in_the_report_says_everything() -> None:
    assert SynthTrace("synth:rag").name == "synth:rag?seed=0&requests=1000"
    assert SynthTrace("synth:rag", seed=5).name == "synth:rag?seed=5&requests=1000"
    assert SynthTrace("synth:rag", endless=True).name == "synth:rag?seed=0"


def test_a_run_is_shake_128_of_the_id_in_decimal() -> None:
    digest = hashlib.shake_128(b"kvspec-run:12345").digest(1024)
    expected = [digest[2 * j] + 256 * digest[2 * j + 1] for j in range(512)]
    assert list(run_tokens(12345)) == expected


def test_the_last_run_is_cut_to_the_input_length() -> None:
    tokens = prompt_tokens(record(1, [7, 8], 515))
    assert tokens == [*run_tokens(7), *run_tokens(8)[:3]]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "requests", "tokens", "repeat_rate"),
    [
        ("mooncake_conversation", 12_031, 144_793_823, 0.366),
        ("mooncake_synthetic", 3_993, 61_194_628, 0.640),
    ],
)
def test_a_real_trace_repeats_as_its_authors_say(
    shared: Path, name: str, requests: int, tokens: int, repeat_rate: float
) -> None:
    explainer = Explainer(512)
    with TraceFile(str(shared / "traces" / f"{name}.jsonl.gz"), ordered=True) as trace:
        records = list(trace)
    for each in records:
        explainer.admitted(each, 0)
    waterfall = explainer.waterfall(0)
    assert (len(records), waterfall.tokens) == (requests, tokens)
    assert float(waterfall.repeat_rate) == pytest.approx(repeat_rate, abs=0.0005)
    assert waterfall.changes[Reason.OTHER_PREFIX] == 0
