"""`kvspec view` as a command: its file, its exit codes, and one line for each error."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcheck.cli import main
from kvspec.policy import Policy
from tests.records.test_profile import HEAD, played_with, profile_file
from tests.view.records import SMALL, with_wrong_answer


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
