"""A writer that is killed leaves the old state or the new one, never a half of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import python


def killed(folder: Path, rounds: int, *more: str) -> dict[str, int]:
    done = python("-m", "tests.saved.killed", str(folder), str(rounds), *more, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.rule("KV-MGR-20")
def test_every_killed_writer_leaves_a_whole_state(tmp_path: Path) -> None:
    found = killed(tmp_path, 40)
    assert found["half beside it"] > 5, "hardly any was killed while it wrote"
    assert found["whole"] == 44
    assert set(found) == {"half beside it", "whole"}


def test_a_writer_in_place_is_found(tmp_path: Path) -> None:
    found = killed(tmp_path, 20, "--in-place")
    assert found.get("cut off", 0) > 0
