"""The page: complete in itself, safe against what a record says, and true to the frames."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcheck.discovery import find_implementation
from kvcheck.tools.view import NotShownError, load
from kvcheck.view.model import Recording, Violation
from kvcheck.view.page import SHOWN_CHARACTERS, content, embedded, page, queue_change
from kvcheck.view.text import MEANINGS, group_words
from kvspec.config import KVCacheGroup
from kvspec.operations import OPERATIONS
from kvspec.specs import ChunkedLocalAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.view.records import LARGE, SMALL, renamed, rewritten

KVREF = find_implementation("kvref")


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="record">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found[1])


def folded(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    states = []
    state: dict[str, Any] = {"queue": [], "refs": {}, "keys": {}, "held": {}, "counts": {}}
    for frame in frames:
        state = dict(state)
        for name in ("refs", "keys"):
            state[name] = {**state[name], **dict(frame.get(name, []))}
        for name in ("held", "counts"):
            members = {**state[name], **frame.get(name, {})}
            state[name] = {key: value for key, value in members.items() if value is not None}
        state["queue"] = moved(state["queue"], frame.get("queue", {}))
        for name in ("same_key", "free_blocks", "usage"):
            state[name] = frame.get(name, state.get(name))
        states.append(state)
    return states


def moved(queue: list[int], change: dict[str, list[int]]) -> list[int]:
    if "all" in change:
        return change["all"]
    stayed = [block for block in queue if block not in change.get("out", [])]
    return [*change.get("front", []), *stayed, *change.get("back", [])]


def assert_folds_to_its_frames(recording: Recording) -> None:
    shown = folded(data_of(page(recording))["frames"])
    assert len(shown) == len(recording.frames)
    for state, frame in zip(shown, recording.frames, strict=True):
        fields = frame.state.fields
        assert list(state["refs"].values()) == fields["ref_cnt"]
        assert list(state["keys"].values()) == fields["block_hash"]
        assert state["queue"] == fields["free_queue"]
        assert state["held"] == fields["req_blocks"]
        assert state["counts"] == fields["num_cached_block"]
        assert state["same_key"] == frame.state.dup_order
        assert (state["free_blocks"], state["usage"]) == (
            frame.state.num_free_blocks,
            frame.state.usage,
        )


@pytest.mark.parametrize("path", [SMALL, LARGE], ids=lambda path: path.stem)
def test_the_changes_fold_to_the_states(path: Path) -> None:
    assert_folds_to_its_frames(load(path, KVREF))


@pytest.mark.shared
def test_the_changes_of_the_shared_traces_fold_to_the_states(shared: Path) -> None:
    shown = 0
    for path in sorted((shared / "golden" / "manager").iterdir())[::6]:
        try:
            recording = load(path)
        except NotShownError:
            continue
        assert_folds_to_its_frames(recording)
        shown += 1
    assert shown > 10


queues = st.lists(st.integers(1, 12), max_size=12, unique=True)


@given(queues, queues)
def test_a_queue_change_leads_from_one_queue_to_the_other(old: list[int], new: list[int]) -> None:
    assert moved(old, queue_change(old, new)) == new


def test_a_queue_change_is_short_where_blocks_leave_anywhere_and_join_at_the_ends() -> None:
    assert queue_change([1, 2, 3, 4, 5], [9, 1, 3, 5, 7]) == {
        "out": [2, 4],
        "front": [9],
        "back": [7],
    }


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


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (MLAAttentionSpec(4, 1, 576, "bfloat16"), "MLA attention, 4 tokens per block"),
        (
            SlidingWindowSpec(4, 1, 8, "bfloat16", sliding_window=9),
            "sliding window, 4 tokens per block, window 9",
        ),
        (
            ChunkedLocalAttentionSpec(8, 1, 8, "bfloat16", attention_chunk_size=16),
            "chunked local attention, 8 tokens per block, chunk 16",
        ),
    ],
    ids=["mla", "window", "chunk"],
)
def test_a_group_in_words(spec: Any, words: str) -> None:
    assert group_words(KVCacheGroup(("layer.0",), spec)) == words


def test_a_rule_that_is_broken_is_shown_with_its_name() -> None:
    recording = replace(load(SMALL), violation=Violation(3, "text", "KV-POOL-8"))
    assert content(recording)["violation"]["title"] == "KV-POOL-8 (reverse release)"
