"""A record of kvfast with one thing changed is not accepted, and the line is named.

Each kind of change is made, one at a time, at every operation where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from kvcheck.cli import main
from kvcheck.records.trace import replay_trace
from kvcheck.tools.replay.options import ReplayOptions
from kvfast._implementation import FastImplementation
from kvref import ReferenceImplementation
from kvspec.errors import FormatError
from kvspec.record import Operation
from kvspec.record_file import write_trace
from tests.records.changed import CHANGES, Tampered, changed, spread
from tests.records.fast_records import MonitoredFast, recorded_replay, replay
from tests.records.tape import Tape

Operations: TypeAlias = tuple[Operation, ...]
REFERENCE = ReferenceImplementation()
ERROR = "an error where there is none"
CHANGED: Mapping[str, tuple[str, ...]] = {
    "small": (
        *("a block id", "the order of new blocks", "a longer hit", "a shorter hit", "not refused"),
        *("refused", "an event less", "an event's key", "free blocks", "the free queue", ERROR),
    ),
    "large": ("a block id", "a longer hit", "an event less", "free blocks"),
    "watched": (
        *("a block id", "a longer hit", "a shorter hit", "an event's key", "the free queue", ERROR),
    ),
}
"""Changes of what each of these records asks for."""


def dropped(tape: Tape, *, is_seen: bool = True) -> Iterator[Tampered]:
    """Leave out one operation, and number the others anew.

    It took or released blocks; without `is_seen`, it changed the state alone.
    """
    operations = tape.operations
    for index in range(1, len(operations) - 1):
        moved = num_free(operations[index - 1]) != num_free(operations[index])
        if moved == is_seen and (moved or operations[index].observed.state):
            yield Tampered(index, numbered((*operations[:index], *operations[index + 1 :])))


def swapped(tape: Tape) -> Iterator[Tampered]:
    """Swap two neighbours that both changed the state, each with its result."""
    for index in range(1, len(tape.operations) - 1):
        first, second = tape.operations[index - 1 : index + 1]
        if first.observed.state and second.observed.state:
            head, rest = tape.operations[: index - 1], tape.operations[index + 1 :]
            yield Tampered(index - 1, numbered((*head, second, first, *rest)))


def num_free(operation: Operation) -> int:
    return operation.observed.num_free_blocks


def numbered(operations: Operations) -> Operations:
    return tuple(replace(operation, index=index) for index, operation in enumerate(operations))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    path = tmp_path_factory.mktemp("records") / "run.jsonl"
    return Tape.read(recorded_replay(path, FastImplementation("uncompiled")))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    path = tmp_path_factory.mktemp("records") / "run.jsonl"
    options = ReplayOptions(num_blocks=70, block_size=4, max_tokens_per_step=64)
    return Tape.read(recorded_replay(path, FastImplementation("uncompiled"), options))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    subject = MonitoredFast("uncompiled", history=60)
    replay(subject)
    path = tmp_path_factory.mktemp("records") / "run.jsonl"
    subject.monitor.write_record(path)
    tape = Tape.read(path)
    assert tape.header.start is not None
    return tape


def first_wrong(tape: Tape, tampered: Tampered, folder: Path) -> int:
    path = folder / "tampered.jsonl"
    write_trace(path, tape.header, tampered.operations, {})
    mismatch = replay_trace(path, REFERENCE).mismatch
    assert mismatch is not None
    number = int(mismatch.what.split(",")[0].removeprefix("operation "))
    assert mismatch.line == number + 2  # behind the header, and lines count from 1
    return number


@pytest.mark.parametrize(("which", "name"), [(r, name) for r in CHANGED for name in CHANGED[r]])
def test_a_changed_operation_is_named(
    which: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tape: Tape = request.getfixturevalue(which)
    for tampered in spread(changed(tape.operations, CHANGES[name])):
        is_compared = "result" not in tape.operations[tampered.index].uncompared
        if is_compared or name == ERROR:
            assert first_wrong(tape, tampered, tmp_path) == tampered.index


@pytest.mark.parametrize("tamper", [dropped, swapped])
def test_an_operation_that_is_missing_or_out_of_order_is_named(
    tamper: Callable[[Tape], Iterator[Tampered]], small: Tape, tmp_path: Path
) -> None:
    for tampered in spread(tamper(small)):
        assert first_wrong(small, tampered, tmp_path) == tampered.index


def test_what_left_no_mark_is_missed_where_it_tells_next(small: Tape, tmp_path: Path) -> None:
    for tampered in spread(dropped(small, is_seen=False)):
        assert first_wrong(small, tampered, tmp_path) >= tampered.index


def test_without_new_numbers_a_missing_line_is_no_record(small: Tape, tmp_path: Path) -> None:
    path = tmp_path / "tampered.jsonl"
    write_trace(path, small.header, small.operations, {})
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:40], *lines[41:]]))
    with pytest.raises(FormatError, match="line 41, field 'i': 40 where 39 is due"):
        replay_trace(path, REFERENCE)


def test_the_command_says_where(
    small: Tape, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tampered = next(changed(small.operations, CHANGES["a longer hit"]))
    request = tampered.operations[tampered.index].request_id
    path = tmp_path / "tampered.jsonl"
    write_trace(path, small.header, tampered.operations, {})
    assert main(["golden", str(path), "--impl", "kvref"]) == 1
    place = f"line {tampered.index + 2}: operation {tampered.index}, {request!r}"
    assert f"{path}, {place}, get_computed_blocks" in capsys.readouterr().out
