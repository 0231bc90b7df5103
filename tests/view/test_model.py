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
from kvcheck.view.model import Marks, Violation, life_of_requests, marks_of
from kvcheck.view.page import SHOWN_CHARACTERS, content, embedded, page, queue_change
from kvcheck.view.text import MEANINGS
from kvspec.operations import OPERATIONS
from kvspec.policy import Policy
from kvspec.record import Operation
from tests.cases import Case, cases, words
from tests.commands import said_by
from tests.records.changed import LARGE, PATH, SMALL, Tape, lines_of, spoil, write_lines
from tests.records.test_profile import HEAD, played_with, profile_file
from tests.view.records import renamed, rewritten, with_wrong_answer

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


@pytest.mark.parametrize("case", cases(__file__, "shown.txt"), ids=str)
def test_what_is_shown_of_a_record(case: Case, tmp_path: Path) -> None:
    (name,), options = words(case.given[0])
    on = KVREF if options.pop("replayed", False) else None
    source = {"small": SMALL, "large": LARGE, "planning": PATH}[name]
    lines = lines_of(source)
    for change in case.given[1:]:
        spoil(lines, change)
    path = write_lines(tmp_path / source.name, lines)
    try:
        found = load(path, on, **options)
    except NotShownError as error:
        case.expect([str(error).replace(f"{path.parent}/", "")])
        return
    shown = [frame.operation.index if frame.operation else -1 for frame in found.frames]
    assert shown == [*range(shown[0], shown[-1] + 1)]
    if name == "small":
        whole = [frame.state.fields for frame in load(SMALL).frames]
        assert [frame.state.fields for frame in found.frames] == whole[shown[0] + 1 : shown[-1] + 2]
    wrong = found.violation
    said = "" if wrong is None else wrong.text.partition("\n  state")[0]
    case.expect(
        [
            f"{shown[0]} … {shown[-1]} of {found.num_operations} operations, {found.replayed_on}",
            *found.notes,
            *([f"at {wrong.operation}:", *said.splitlines()[1:]] if wrong else []),
        ]
    )


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
    path = rewritten(tmp_path / "<b>&.jsonl")
    assert "<title>Record &lt;b&gt;&amp;.jsonl</title>" in page(load(path))


@given(st.text())
def test_embedded_texts_come_back_and_hold_no_markup(text: str) -> None:
    data = embedded({text: [text]})
    assert not set("<>&") & set(data)
    assert data.isascii()
    assert json.loads(data) == {text: [text]}


def test_long_arguments_are_cut_and_say_so(tmp_path: Path) -> None:
    change = f"change 2 args prompt_token_ids = {[*range(5000)]}"
    recording = load(rewritten(tmp_path / "long.jsonl", change))
    shown = content(recording)["frames"][1]["args"]["prompt_token_ids"]
    assert len(shown) < SHOWN_CHARACTERS + 100
    assert shown.endswith("characters; the record has them all)")


def test_every_operation_has_a_meaning() -> None:
    assert set(MEANINGS) == set(OPERATIONS)


def test_a_rule_that_is_broken_is_shown_with_its_name() -> None:
    recording = replace(load(SMALL), violation=Violation(3, "text", "KV-POOL-8"))
    assert content(recording)["violation"]["title"] == "KV-POOL-8 (reverse release)"


def test_a_page_is_written_or_its_place_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = with_wrong_answer(tmp_path)
    assert said_by(f"view {SMALL} -o page.html", capsys) == [
        f"page.html: 34 operations of {SMALL}", "exit code 0",
    ]  # fmt: skip
    assert Path("page.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    said = said_by(f"view {wrong} --impl kvref -o page.html", capsys)
    assert f"{wrong}, line 14: operation 12, 'c', allocate_slots" in "\n".join(said)
    assert said[-1] == "exit code 1"
    assert "expected [[6]]" in "\n".join(said)
    assert "expected [[6]]" in Path("page.html").read_text("utf-8")
    assert "nowhere/page.html" in said_by(f"view {SMALL} -o nowhere/page.html", capsys)[0]


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
