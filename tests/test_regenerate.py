"""Generated files are current, and `python -m tests.regenerate` knows all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.regenerate import GENERATED, Quick, Slow, outdated, write
from tests.source import ROOT

QUICK = [each for each in GENERATED if isinstance(each, Quick)]
SLOW = [each for each in GENERATED if isinstance(each, Slow)]


@pytest.mark.parametrize("each", QUICK, ids=lambda each: each.name)
def test_what_takes_seconds_is_current(each: Quick) -> None:
    assert list(outdated(each)) == [], "run: python -m tests.regenerate"


def test_a_file_that_is_missing_or_different_is_found(tmp_path: Path) -> None:
    each = QUICK[0]
    (name,) = each.texts()
    assert list(outdated(each, tmp_path)) == [name]
    write(each, tmp_path)
    assert list(outdated(each, tmp_path)) == []
    (tmp_path / name).write_text("{}")
    assert list(outdated(each, tmp_path)) == [name]


@pytest.mark.parametrize("each", SLOW, ids=lambda each: each.name)
def test_what_takes_longer_has_its_program_and_its_files(each: Slow) -> None:
    assert importlib.util.find_spec(each.command[2]) is not None
    assert (ROOT / each.writes).exists()


def test_contributing_lists_all_of_it() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [each.name for each in GENERATED if f"`{each.name}`" not in text] == []
