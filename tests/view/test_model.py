"""Frames of a record: their states, their marks, the lives of requests, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.state import View, digest
from kvcheck.records.trace import replay_trace
from kvcheck.tools.view import NotShownError, load
from kvcheck.view.model import Frame, Marks, life_of_requests, marks_of
from kvspec.record import Operation
from tests.records.tape import Tape
from tests.view.records import LARGE, SMALL, rewritten, with_wrong_answer

KVREF = find_implementation("kvref")


def test_folded_states_are_those_that_the_reference_shows() -> None:
    states: list[Any] = []

    def watch(operation: Operation | None, view: View) -> None:
        states.append((view.state, view.dup_order, view.num_free_blocks, view.usage))

    assert replay_trace(SMALL, KVREF, watch=watch).passed
    folded = [
        (frame.state.fields, frame.state.dup_order, frame.state.num_free_blocks, frame.state.usage)
        for frame in load(SMALL).frames
    ]
    assert folded == states
    assert len(folded) == 35


def test_states_of_a_large_pool_come_from_a_replay_and_have_the_recorded_hashes() -> None:
    recording = load(LARGE, KVREF)
    assert [frame.operation and frame.operation.index for frame in recording.frames] == [
        None,
        *range(31),
    ]
    for frame in recording.frames[1:]:
        assert frame.operation is not None
        assert digest(dict(frame.state.fields)) == frame.operation.observed.state_sha256


def test_a_block_that_is_taken_and_cached_anew_is_evicted_and_cached() -> None:
    operation = Tape.read(SMALL).operations[12]
    marks = marks_of(operation, [None, "aa", "bb", None], [None, "aa", "cc", "dd"])
    assert marks == Marks(hit=(1, 2), evicted=(2,), cached=(2, 3))


def test_a_released_request_that_never_ran_waits_and_a_name_used_again_begins_again() -> None:
    new, look_up, allocate = (Tape.read(SMALL).operations[at] for at in (0, 1, 2))
    free = Tape.read(SMALL).operations[27]

    def numbered(*operations: Operation) -> list[Operation]:
        return [
            Operation(at, each.name, "a", each.arguments, each.observed, each.result)
            for at, each in enumerate(operations)
        ]

    waiting = numbered(new, free, look_up, allocate, free, new)
    assert life_of_requests(waiting) == {
        "a": [(0, "waiting"), (3, "running"), (4, "done"), (5, "waiting")]
    }


def test_the_first_difference_is_found_and_small_pools_show_what_was_recorded(
    tmp_path: Path,
) -> None:
    recording = load(with_wrong_answer(tmp_path), KVREF)
    assert recording.violation is not None
    assert recording.violation.operation == 12
    assert "expected [[6]]" in recording.violation.text
    assert "got      [[5]]" in recording.violation.text
    assert len(recording.frames) == 35
    assert (recording.replayed_on, recording.notes) == ("kvref", ())


def test_a_replayed_pool_ends_with_the_first_difference(tmp_path: Path) -> None:
    recording = load(with_wrong_answer(tmp_path, LARGE, 8), KVREF)
    assert recording.violation is not None
    assert recording.violation.operation == 8
    assert len(recording.frames) == 10
    assert recording.notes == ("This page ends with operation 8 of 31: it differs.",)


def test_a_different_new_manager_is_a_violation_before_the_first_operation(tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[0]["none_hash"] = "00" * 32

    recording = load(rewritten(SMALL, tmp_path / "seed.jsonl", change), KVREF)
    assert recording.violation is not None
    assert recording.violation.operation == -1


def test_quirks_end_the_comparison_and_the_page_says_where(tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[8]["quirks"] = ["late_block_multimodal"]
        lines[0]["quirks"] = ["late_block_multimodal"]

    recording = load(rewritten(SMALL, tmp_path / "quirk.jsonl", change), KVREF)
    assert recording.violation is None
    assert len(recording.frames) == 35
    [note] = recording.notes
    assert note.startswith("Operation 7 is marked as a quirk")


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    first = load(SMALL, max_cells=80)
    assert [_index(frame) for frame in first.frames] == [-1, *range(9)]
    assert first.num_operations == 34
    [note] = first.notes
    assert "the first 10 of 35 states" in note

    wrong = with_wrong_answer(tmp_path)
    last = load(wrong, KVREF, max_cells=40)
    assert [_index(frame) for frame in last.frames] == [8, 9, 10, 11, 12]
    assert len(last.notes) == 2
    assert last.frames[0].state.fields == load(SMALL).frames[9].state.fields


def test_a_page_may_begin_later() -> None:
    later = load(SMALL, first_operation=20, max_cells=64)
    assert [_index(frame) for frame in later.frames] == list(range(20, 28))
    assert "the first 8 of 14 states" in later.notes[0]
    whole = load(SMALL, first_operation=20)
    assert [_index(frame) for frame in whole.frames] == list(range(20, 34))
    assert whole.frames == load(SMALL).frames[21:]
    assert whole.notes == ()
    with pytest.raises(NotShownError, match="no operation 34; there are 34, counted from 0"):
        load(SMALL, first_operation=34)


def test_a_page_can_not_begin_behind_the_last_known_state(tmp_path: Path) -> None:
    wrong = with_wrong_answer(tmp_path, LARGE, 8)
    with pytest.raises(NotShownError, match="from operation 9 on; choose one up to 8"):
        load(wrong, KVREF, first_operation=9)
    assert [_index(frame) for frame in load(wrong, KVREF, first_operation=8).frames] == [8]


def _index(frame: Frame) -> int:
    return -1 if frame.operation is None else frame.operation.index


def test_what_can_not_be_shown_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotShownError, match=r"100 blocks.*--impl kvref"):
        load(LARGE)

    def change(lines: list[dict[str, Any]]) -> None:
        lines[0].update(initial=None, raises="ValueError")
        lines[1:-1] = []
        lines[-1]["num_ops"] = 0

    with pytest.raises(NotShownError, match="must fail with ValueError"):
        load(rewritten(SMALL, tmp_path / "fails.jsonl", change))
    planning = tmp_path / "planning.jsonl"
    planning.write_text('{"type":"header","format":"kv-cache-planning","version":1,"source":"x"}\n')
    with pytest.raises(NotShownError, match="planning file"):
        load(planning)
