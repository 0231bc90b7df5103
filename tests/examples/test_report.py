"""The pages of examples/report: small, whole in themselves, and about what they say."""

from __future__ import annotations

import re

import pytest

from kvcheck.rulebook import rule_sentences
from tests.examples.test_own_manager import DIRECTED
from tests.source import ROOT

FOLDER = ROOT / "examples/report"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.html")}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_page_is_small_and_needs_nothing_else(page: str) -> None:
    """No network, no other file; and nothing of the machine that made it."""
    assert len(page.encode()) < 300_000
    assert not re.search(r" src=|https?://|@import|url\(", page)
    assert "default-src 'none'" in page
    assert not re.search(r"/(?:home|tmp|root|work)/", page)


def test_the_page_of_the_first_version_shows_what_directed_programs_find() -> None:
    """Random ones found more."""
    assert "mymanager:implementation does not conform at level safety" in PAGES["broken"]
    shown = set(re.findall(r"KV-[A-Z]+-\d+", PAGES["broken"].partition("<h2>Rules")[0]))
    assert set(DIRECTED[0].broken) <= shown


def test_the_page_of_the_reference_names_rules_that_exist() -> None:
    """It conforms at the highest level."""
    assert "self-checks only: nothing to compare with" in PAGES["kvref"]
    assert set(re.findall(r"KV-[A-Z]+-\d+", PAGES["kvref"])) <= set(rule_sentences())


def test_the_page_of_a_planted_mistake_has_stories_to_draw() -> None:
    """The first version of the guide's manager shows no state, so nothing of it is drawn."""
    assert PAGES["drawn"].count('<div class="story">') >= 3
    assert '<div class="story">' not in PAGES["broken"]


def test_the_list_of_pages_is_complete() -> None:
    """Each with the command that wrote it."""
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(PAGES) == {"broken", "drawn", "kvref"}
    for name in PAGES:
        assert f"({name}.html)" in listed
        assert f"--html {name}.html`" in listed
