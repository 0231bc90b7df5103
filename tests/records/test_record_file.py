"""Record files: what is written is read; what is malformed is refused by file, line and field."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcheck.records.select import shipped_records
from kvspec.errors import FormatError
from kvspec.record import Footer, Header, Operation, PlanningHeader, PlanningRecord
from kvspec.record_file import read_header, read_planning, read_trace, write_trace
from tests.records.tape import Tape

SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"

Lines = list[dict[str, Any]]


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


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


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    path = tmp_path / "packed.jsonl"
    path.write_bytes(gzip.compress(SMALL.read_bytes()))
    assert list(read_trace(path)) == list(read_trace(SMALL))


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Behind a link, so that a failure of this test replaces the link only."""
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


def change(line: int, *path: str | int, to: Any) -> Callable[[Lines], None]:
    """Set one value; `line` counts from 1."""

    def apply(lines: Lines) -> None:
        target: Any = lines[line - 1]
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return apply


def remove(line: int, *path: str | int) -> Callable[[Lines], None]:
    def apply(lines: Lines) -> None:
        target: Any = lines[line - 1]
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return apply


MALFORMED: list[tuple[Callable[[Lines], Any], int | None, str | None, str]] = [
    (change(1, "type", to="head"), 1, None, "the first line must be a header"),
    (change(1, "format", to="other"), 1, "format", "'other' is not 'kv-cache-manager-trace'"),
    (change(1, "version", to=5), 1, "version", "5: this kvspec reads version 1, 2, 3, 4"),
    (change(1, "version", to=True), 1, "version", "True: this kvspec reads"),
    (remove(1, "none_hash"), 1, "none_hash", "missing"),
    (change(1, "none_hash", to="xy"), 1, "none_hash", "not a string of hexadecimal"),
    (change(1, "none_hash", to="AB"), 1, "none_hash", "not lower-case"),
    (change(1, "config", "num_blocks", to="8"), 1, "config.num_blocks", "not an int"),
    (remove(1, "config", "groups", 0, "spec", "dtype"), 1, "config.groups[0].spec.dtype", "miss"),
    (remove(1, "initial", "state", "ref_cnt"), 1, "initial.state.ref_cnt", "missing"),
    (change(1, "initial", to=None), 1, "initial", "None is not an object"),
    (change(1, "raises", to="ValueError"), 1, "initial", "is not null"),
    (change(1, "raises", to="Ouch"), 1, "raises", "'Ouch' is not one of"),
    (change(3, "op", to="look"), 3, "op", "unknown operation 'look'"),
    (change(3, "op", to=None), 3, "op", "None is not a string"),
    (change(3, "i", to=7), 3, "i", "7 where 1 is due"),
    (remove(3, "req"), 3, "req", "missing"),
    (change(3, "req", to="ghost"), 3, "req", "no new_request made 'ghost' before"),
    (change(3, "what", to=1), 3, "what", "unknown"),
    (remove(3, "result"), 3, "result", "missing"),
    (change(3, "raises", to="ValueError"), 3, "result", "unknown"),
    (change(3, "message", to="a"), 3, "message", "unknown"),
    (change(3, "result", "blocks", to=[[-1]]), 3, "result.blocks[0][0]", "-1 is negative"),
    (change(3, "args", "num_preemptions", to=1.0), 3, "args.num_preemptions", "1.0 is not an int"),
    (remove(4, "args", "num_new_tokens"), 4, "args.num_new_tokens", "missing"),
    (change(4, "args", "status", to="LOST"), 4, "args.status", "'LOST' is not one of WAITING"),
    (change(4, "usage", to="a"), 4, "usage", "'a' is not a number"),
    (change(4, "state", "extra", to=1), 4, "state.extra", "unknown"),
    (change(4, "state", "ref_cnt", to=[None]), 4, "state.ref_cnt[0]", "None is not an int"),
    (change(4, "state_sha256", to="aa"), 4, "state_sha256", "unknown"),
    (change(3, "state", to={"free_queue": [1, 2, 3, 4, 5, 6, 7]}), 3, "state.free_queue", "unch"),
    (change(3, "dup_order", to={}), 3, "dup_order", "unchanged"),
    (change(3, "dup_order", to={"aa": [1]}), 3, "dup_order.aa", "at least two blocks"),
    (change(35, "result", 0, "medium", to=3), 35, "result[0].medium", "3 is not a string"),
    (change(35, "result", 0, "block_hashes", 0, to="4"), 35, "result[0].block_hashes[0]", "hexa"),
    (change(34, "result", "hits", to=-1), 34, "result.hits", "-1 is negative"),
    (change(36, "num_ops", to=33), 36, "num_ops", "33, but 34 came before"),
    (change(36, "coverage", to={"a": "b"}), 36, "coverage.a", "'b' is not an int"),
    (lambda lines: lines.pop(), None, None, "cut off: no footer after 34 operations"),
    (lambda lines: lines.append(lines[2]), 37, None, "a line after the footer"),
    (lambda lines: lines.clear(), None, None, "empty"),
]


@pytest.mark.parametrize(("spoil", "line", "field", "problem"), MALFORMED)
def test_malformed_traces_are_refused(
    tmp_path: Path, spoil: Callable[[Lines], Any], line: int | None, field: str, problem: str
) -> None:
    lines = lines_of(SMALL)
    spoil(lines)
    path = write_lines(tmp_path / "bad.jsonl", lines)
    with pytest.raises(FormatError) as caught:
        list(read_trace(path))
    error = caught.value
    assert (error.file, error.line, error.field) == (str(path), line, field)
    assert problem in error.problem


def test_large_pools_show_hashes_only(tmp_path: Path) -> None:
    lines = lines_of(LARGE)
    change(2, "state", to={})(lines)
    with pytest.raises(FormatError, match="'state': unknown"):
        list(read_trace(write_lines(tmp_path / "bad.jsonl", lines)))
    lines = lines_of(LARGE)
    remove(2, "state_sha256")(lines)
    with pytest.raises(FormatError, match="'state_sha256': missing"):
        list(read_trace(write_lines(tmp_path / "bad.jsonl", lines)))


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
        (b"\n", 1, "empty line"),
        (b"\xff\n", 1, "not UTF-8 at byte 0"),
        (b'{"a": NaN}\n', 1, "NaN is not JSON"),
        (b'{"a": 1, "a": 2}\n', 1, "given twice"),
        (b"[" * 100_000, 1, "nested too deeply"),
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


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({**PLANNING, "id": "3"}, "id"),
        ({**PLANNING, "input": []}, "input"),
        ({"id": 3, "fn": "merge", "input": {}}, "output"),
        ({**PLANNING, "raises": "ValueError"}, "output"),
        ({"id": 3, "fn": "merge", "input": {}, "raises": "Ouch"}, "raises"),
        ({**PLANNING, "more": 1}, "more"),
    ],
)
def test_malformed_planning_records_are_refused(
    tmp_path: Path, record: dict[str, Any], field: str
) -> None:
    path = write_lines(tmp_path / "p.jsonl", [PLANNING_HEADER, record])
    with pytest.raises(FormatError) as caught:
        list(read_planning(path))
    assert (caught.value.line, caught.value.field) == (2, field)


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
