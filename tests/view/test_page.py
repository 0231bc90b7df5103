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
from kvcheck.records.select import shipped_records
from kvcheck.tools.view import load
from kvcheck.view.model import Violation
from kvcheck.view.page import SHOWN_CHARACTERS, content, embedded, page, queue_change
from kvcheck.view.text import MEANINGS
from kvspec.operations import OPERATIONS
from tests.cases import Case, cases
from tests.view.records import SMALL, renamed, rewritten

KVREF = find_implementation("kvref")


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
