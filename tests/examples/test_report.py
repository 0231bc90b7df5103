"""The page of examples/report: small, whole in itself, and about what it says."""

from __future__ import annotations

import re

from kvcheck.rulebook import rule_sentences
from tests.source import ROOT

FOLDER = ROOT / "examples/report"
PAGE = (FOLDER / "drawn.html").read_text(encoding="utf-8")


def test_the_page_is_small_and_needs_nothing_else() -> None:
    assert len(PAGE.encode()) < 300_000
    assert not re.search(r" src=|https?://|@import|url\(", PAGE)
    assert "default-src 'none'" in PAGE
    assert not re.search(r"/(?:home|tmp|root|work)/", PAGE)


def test_it_names_rules_that_exist_and_has_stories_to_draw() -> None:
    assert set(re.findall(r"KV-[A-Z]+-\d+", PAGE)) <= set(rule_sentences())
    assert PAGE.count('<div class="story">') >= 3


def test_the_command_that_wrote_it_is_beside_it() -> None:
    assert "--html drawn.html`" in (FOLDER / "README.md").read_text(encoding="utf-8")
