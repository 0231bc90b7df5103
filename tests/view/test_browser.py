"""The page in a browser: Chromium without a window opens it, steps, and says what it shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.judge.drawing import story
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.page import report_html
from kvcheck.judge.suite import Suite
from kvcheck.judge.telling import told
from kvcheck.play.verdicts import Level
from kvcheck.tools.view import load
from kvcheck.view.model import Recording
from kvcheck.view.page import page
from tests.browser import browse, text_of
from tests.mistakes import mistaken
from tests.records.changed import LARGE, SMALL
from tests.view.records import renamed, with_wrong_answer

KVREF = find_implementation("kvref")
SCRIPT = Path(__file__).with_name("browser.js").read_text(encoding="utf-8")


def opened(
    program: str, folder: Path, recording: Recording, fragment: str = "", script: str = ""
) -> str:
    file = folder / "page.html"
    text = page(recording)
    end = text.rindex("</body>")
    file.write_text(f"{text[:end]}<script>{SCRIPT}{script}</script>{text[end:]}", "utf-8")
    return browse(program, folder, f"{file.as_uri()}{fragment}", "--dump-dom")


def answer_of(document: str) -> Any:
    return json.loads(text_of(document, "answer"))


@pytest.mark.parametrize("path", [SMALL, LARGE], ids=lambda path: path.stem)
def test_every_step_shows_the_state_of_its_frame(chromium: str, tmp_path: Path, path: Path) -> None:
    recording = load(path, KVREF)
    seen = answer_of(opened(chromium, tmp_path, recording, script="readAll();"))
    assert len(seen) == len(recording.frames)
    for shown, frame in zip(seen, recording.frames, strict=True):
        fields = frame.state.fields
        if frame.operation is not None:
            number = f"Operation {frame.operation.index}: {frame.operation.name}"
            assert shown["title"].startswith(number)
        assert shown["queue"] == fields["free_queue"]
        assert [int(row[2]) for row in shown["blocks"]] == fields["ref_cnt"]
        assert [row[3] for row in shown["blocks"]] == [
            "–" if key is None else key[:8] for key in fields["block_hash"]
        ]
        held = {row[0]: row[2] for row in shown["requests"] if row[2] != "–"}
        assert held == {
            name: " ".join(map(str, blocks)) for name, [blocks] in fields["req_blocks"].items()
        }


def test_keys_buttons_and_the_picture_lead_where_they_should(chromium: str, tmp_path: Path) -> None:
    recording = load(with_wrong_answer(tmp_path), KVREF)
    steps = answer_of(opened(chromium, tmp_path, recording, script="walk();"))
    keys = [0, 1, 0, 16, 19, 16, 23, 17, 12, 12, 33, -1]
    buttons = [0, 33, 32, -1, 23, 12, 12]
    assert steps == [*keys, *buttons, 4, 33, 20]


@pytest.mark.parametrize("name", ["</script><b>", "constructor", "__proto__", "<img>"])
def test_odd_request_ids_are_texts(chromium: str, tmp_path: Path, name: str) -> None:
    document = opened(chromium, tmp_path, load(renamed(tmp_path, "c", name)), "#op=12")
    assert text_of(document, "operation-title") == f"Operation 12: allocate_slots, request {name}"
    assert text_of(document, "requests").split()[-6:] == [name, "running", "1", "2", "5", "3"]
    assert "<img>" not in document.partition('id="record"')[0]


def test_the_first_story_of_a_check_is_drawn_open(chromium: str, tmp_path: Path) -> None:
    subject = mistaken("TakesFromTheBack")
    options = Options(Level.IDENTITY, Budget(0.0, 0, 0.5), rules=("KV-POOL-3",), name="mine")
    report = Suite(subject, KVREF, options).run()
    found = [told(each, subject, KVREF, options) for each in report.violations]
    stories = [story(each, subject, KVREF, options) for each in found]
    text = report_html(replace(report, violations=tuple(found)), (), stories)
    file = tmp_path / "report.html"
    end = text.rindex("</body>")
    file.write_text(f"{text[:end]}<script>{SCRIPT}readStories();</script>{text[end:]}", "utf-8")
    document = browse(chromium, tmp_path, f"{file.as_uri()}#KV-POOL-3", "--dump-dom")
    first, *others = answer_of(document)
    assert first["title"].startswith("Operation ")
    assert len(first["differs"]) >= 2
    assert first["fits"]
    assert others == [None] * (len(found) - 1)
    chapter = document.partition("The block pool")[0].rpartition("<details")[2]
    assert "open" in chapter
