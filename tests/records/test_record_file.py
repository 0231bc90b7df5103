"""Record files: what is written is read, from any start; what is malformed is refused by place."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvcheck.tools.view import NotShownError, load
from kvref import ReferenceImplementation
from kvspec.errors import FormatError
from kvspec.record import Footer, Header, Operation, PlanningHeader, PlanningRecord
from kvspec.record_file import read_header, read_planning, read_trace, write_trace
from tests.cases import Case, cases
from tests.records.changed import Tape, fields, lines_of, spoil, write_lines

SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"


@pytest.mark.parametrize("name", ["copy.jsonl", "copy.jsonl.gz"])
@pytest.mark.parametrize("source", [SMALL, LARGE], ids=lambda path: path.stem)
def test_what_is_written_is_read(tmp_path: Path, source: Path, name: str) -> None:
    tape = Tape.read(source)
    target = tmp_path / name
    footer = write_trace(target, tape.header, tape.operations, {"op:free": 3})
    read = list(read_trace(target))
    assert read == [tape.header, *tape.operations, footer]
    assert footer == Footer(len(tape.operations), {"op:free": 3})
    assert read_header(target) == tape.header
    content = target.read_bytes()
    assert (content[:2] == b"\x1f\x8b") == name.endswith(".gz")
    write_trace(target, tape.header, tape.operations, {"op:free": 3})
    assert target.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Use a link, so that a failure of this test replaces the link only."""
    link = tmp_path / "nowhere.jsonl"
    link.symlink_to(os.devnull)
    header, *_ = read_trace(SMALL)
    assert isinstance(header, Header)
    write_trace(link, header, (), {})
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    tape = Tape.read(SMALL)
    target = tmp_path / "mine.jsonl"
    target.write_text("old")

    def broken() -> Any:
        yield tape.operations[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(target, tape.header, broken(), {})
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]


def test_reading_is_lazy(tmp_path: Path) -> None:
    lines = lines_of(SMALL)
    lines[5]["op"] = "nonsense"
    reader = read_trace(write_lines(tmp_path / "r.jsonl", lines))
    assert isinstance(next(reader), Header)
    assert [next(reader).index for _ in range(4)] == [0, 1, 2, 3]  # type: ignore[union-attr]  # four operations come before the bad line
    with pytest.raises(FormatError, match="unknown operation 'nonsense'"):
        next(reader)


def refused(path: Path, read: Callable[[Path], Iterable[object]]) -> str:
    with pytest.raises(FormatError) as caught:
        list(read(path))
    assert caught.value.file == str(path)
    return str(caught.value).replace(str(path), "bad.jsonl")


@pytest.mark.parametrize("case", cases(__file__, "spoilt.txt"), ids=str)
def test_malformed_records_are_refused(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "bad.jsonl"
    verb, _, record = case.name.partition(" ")
    if verb == "planning":
        write_lines(path, [PLANNING_HEADER, json.loads(record)])
        case.expect([refused(path, read_planning)])
    else:
        is_started = verb == "started"
        lines = lines_of(STARTED if is_started else SMALL)
        for change in (record if is_started else case.name).split("; "):
            spoil(lines, change)
        case.expect([refused(write_lines(path, lines), read_trace)])


def test_no_operation_after_a_failed_build(tmp_path: Path) -> None:
    lines = lines_of(SMALL)
    lines[0] |= {"initial": None, "raises": "ValueError"}
    path = tmp_path / "bad.jsonl"
    with pytest.raises(FormatError, match="line 2: an operation, although building"):
        list(read_trace(write_lines(path, lines)))
    footer = {"type": "footer", "num_ops": 0, "coverage": {}}
    header, end = read_trace(write_lines(path, [lines[0], footer]))
    assert isinstance(header, Header)
    assert header.raises == "ValueError"
    assert end == Footer(0)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", None, "empty"),
        (b"{}\n", 1, "the first line must be a header"),
        (b"[1\n", 1, "not JSON at column"),
        (gzip.compress(SMALL.read_bytes())[:-900], 1, "compressed data is cut off"),
        (b"\x1f\x8bnonsense", 1, "compressed data is damaged"),
    ],
)
def test_what_is_no_json_is_refused(
    tmp_path: Path, content: bytes, line: int | None, problem: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        list(read_trace(path))
    assert caught.value.file == str(path)
    assert problem in caught.value.problem
    if line is None:
        assert caught.value.line is None
    else:
        assert caught.value.line is not None
        assert caught.value.line >= line


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        read_header(tmp_path / "nothing.jsonl")
    with pytest.raises(FormatError, match="directory"):
        read_header(tmp_path)


PLANNING_HEADER = {"type": "header", "format": "kv-cache-planning", "version": 1, "source": "me"}
PLANNING = {"id": 3, "fn": "merge", "input": {"specs": []}, "output": None}


def test_planning_files_are_read(tmp_path: Path) -> None:
    failed = {"id": 4, "fn": "f", "input": {}, "raises": "ValueError", "message": "no"}
    path = write_lines(
        tmp_path / "p.jsonl", [PLANNING_HEADER, PLANNING, {**failed, "quirks": ["odd"]}]
    )
    assert read_header(path) == PlanningHeader("me")
    assert list(read_planning(path)) == [
        PlanningHeader("me"),
        PlanningRecord(3, "merge", {"specs": []}, line=2),
        PlanningRecord(4, "f", {}, None, "ValueError", "no", ("odd",), line=3),
    ]
    with pytest.raises(FormatError, match="'format': not 'kv-cache-manager-trace'"):
        list(read_trace(path))
    with pytest.raises(FormatError, match="'format': not 'kv-cache-planning'"):
        list(read_planning(SMALL))


@pytest.mark.shared
def test_the_shared_records_are_read_and_written_alike(shared: Path, tmp_path: Path) -> None:
    folder = shared / "golden" / "manager"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    for path in sorted(folder.iterdir()):
        header, *rest = read_trace(path)
        operations = [line for line in rest if isinstance(line, Operation)]
        footer = rest[-1]
        assert isinstance(header, Header)
        assert isinstance(footer, Footer)
        copy = tmp_path / "copy.jsonl"
        write_trace(copy, header, operations, footer.coverage)
        assert lines_of(copy)[1:] == [json.loads(line) for line in _text(path)[1:]]
        assert list(read_trace(copy)) == [header, *operations, footer]


def _text(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


REFERENCE = ReferenceImplementation()
STARTED, STARTED_LARGE = (
    Path(__file__).with_name(name) for name in ("started.jsonl", "started_large.jsonl")
)
"""Two requests; the second one is recorded, and its allocation shows no state."""


@pytest.mark.parametrize("path", [STARTED, STARTED_LARGE], ids=["small", "large"])
def test_a_record_that_starts_from_a_state_replays(tmp_path: Path, path: Path) -> None:
    assert json.loads(path.read_text().splitlines()[0])["version"] == 2
    header, *rest = read_trace(path)
    assert isinstance(header, Header)
    assert header.start is not None
    write_trace(tmp_path / "again.jsonl", header, [x for x in rest if isinstance(x, Operation)], {})
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()
    result = replay_trace(path, REFERENCE)
    assert result.mismatch is None, result.mismatch.render()
    assert result.compared == 5


@pytest.mark.parametrize("case", cases(__file__, "compared.txt"), ids=str)
def test_what_is_not_left_out_is_compared(tmp_path: Path, case: Case) -> None:
    lines = lines_of(STARTED)
    for change in case.given:
        spoil(lines, change)
    mismatch = replay_trace(write_lines(tmp_path / "r.jsonl", lines), REFERENCE).mismatch
    case.expect([f"{mismatch.what}: {', '.join(fields(mismatch))}" if mismatch else "passes"])


def test_a_page_shows_a_record_that_starts_from_a_state() -> None:
    shown = load(STARTED)
    assert len(shown.frames) == 6
    assert any("without the state" in note for note in shown.notes)
    assert shown.frames[3].state.fields["ref_cnt"] == [0] * 6
    told = load(STARTED, REFERENCE)
    assert told.violation is None
    assert told.frames[3].state.fields["ref_cnt"] == [0, 1, 1, 1, 0, 0]
    with pytest.raises(NotShownError):
        load(STARTED_LARGE)
    assert len(load(STARTED_LARGE, REFERENCE).frames) == 6
