"""`kvspec view`: frames, the page, and what the command says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcheck.cli import main
from kvcheck.discovery import find_implementation
from kvcheck.play.state import View, digest
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvcheck.tools.view import NotShownError, load
from kvcheck.view.model import Frame, Marks, Violation, life_of_requests, marks_of
from kvcheck.view.page import SHOWN_CHARACTERS, content, embedded, page, queue_change
from kvcheck.view.text import MEANINGS
from kvspec.operations import OPERATIONS
from kvspec.policy import Policy
from kvspec.record import Operation
from tests.cases import Case, cases
from tests.records.changed import Tape
from tests.records.test_profile import HEAD, played_with, profile_file
from tests.view.records import LARGE, SMALL, renamed, rewritten, with_wrong_answer

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


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="record">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found[1])


def moved(queue: list[int], change: dict[str, list[int]]) -> list[int]:
    if "all" in change:
        return change["all"]
    stayed = [block for block in queue if block not in change.get("out", [])]
    return [*change.get("front", []), *stayed, *change.get("back", [])]


@pytest.mark.parametrize("case", cases(__file__, "content.txt"), ids=str)
def test_the_content_of_a_page_is_as_it_was_read(case: Case) -> None:
    shown = content(load(shipped_records() / f"{case.given[0]}.jsonl", KVREF))
    frames = shown.pop("frames")
    case.expect(json.dumps(each) for each in (*({k: v} for k, v in shown.items()), *frames))


queues = st.lists(st.integers(1, 12), max_size=12, unique=True)


@given(queues, queues)
def test_a_queue_change_leads_from_one_queue_to_the_other(old: list[int], new: list[int]) -> None:
    assert moved(old, queue_change(old, new)) == new


def test_the_page_refers_to_nothing_outside() -> None:
    html = page(load(SMALL, KVREF))
    for outside in ("http:", "https:", "//cdn", "src=", "href=", "url(", "@import", "import("):
        assert outside not in html
    assert "<title>Record life_of_blocks.jsonl</title>" in html
    assert "default-src 'none'" in html
    assert "{{" not in html


HOSTILE = "</script><script>document.title='broken'</script><!-- & {{data}} \u2028"


def test_a_request_id_can_not_break_out_of_the_data(tmp_path: Path) -> None:
    html = page(load(renamed(tmp_path, "a", HOSTILE)))
    assert html.count("</script>") == page(load(SMALL)).count("</script>") == 2
    assert "document.title='broken'</" not in html
    assert next(iter(data_of(html)["lives"])) == HOSTILE


def test_a_file_name_can_not_break_out_of_the_title(tmp_path: Path) -> None:
    path = rewritten(SMALL, tmp_path / "<b>&.jsonl", lambda lines: None)
    assert "<title>Record &lt;b&gt;&amp;.jsonl</title>" in page(load(path))


@given(st.text())
def test_embedded_texts_come_back_and_hold_no_markup(text: str) -> None:
    data = embedded({text: [text]})
    assert not set("<>&") & set(data)
    assert data.isascii()
    assert json.loads(data) == {text: [text]}


def test_long_arguments_are_cut_and_say_so(tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[1]["args"]["prompt_token_ids"] = list(range(5000))

    recording = load(rewritten(SMALL, tmp_path / "long.jsonl", change))
    shown = content(recording)["frames"][1]["args"]["prompt_token_ids"]
    assert len(shown) < SHOWN_CHARACTERS + 100
    assert shown.endswith("characters; the record has them all)")


def test_every_operation_has_a_meaning() -> None:
    assert set(MEANINGS) == set(OPERATIONS)


def test_a_rule_that_is_broken_is_shown_with_its_name() -> None:
    recording = replace(load(SMALL), violation=Violation(3, "text", "KV-POOL-8"))
    assert content(recording)["violation"]["title"] == "KV-POOL-8 (reverse release)"


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "page.html"
    assert main(["view", str(SMALL), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}: 34 operations of {SMALL}\n"
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_difference_is_written_shown_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.html"
    wrong = with_wrong_answer(tmp_path)
    assert main(["view", str(wrong), "--impl", "kvref", "-o", str(target)]) == 1
    out = capsys.readouterr().out
    assert f"{wrong}, line 14: operation 12, 'c', allocate_slots" in out
    assert "expected [[6]]" in out
    assert "expected [[6]]" in target.read_text("utf-8")


def test_a_place_that_can_not_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "nowhere" / "page.html"
    assert main(["view", str(SMALL), "-o", str(target)]) == 2
    assert str(target) in capsys.readouterr().err


def test_a_record_without_a_policy_is_replayed_under_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = str(played_with(Policy(unhashed_freed_to="back"), tmp_path))
    mine = str(profile_file(tmp_path, HEAD + '[policy]\nunhashed_freed_to = "back"\n'))
    call = ["view", record, "--impl", "kvref", "-o", str(tmp_path / "page.html")]
    assert main(call) == 1
    assert main([*call, "--profile", mine]) == 0
    capsys.readouterr()
    assert main([*call, "--profile", "vllm-9"]) == 2
    assert "vllm-9" in capsys.readouterr().err
