"""`python -m tests.machines`: a failure becomes a test to paste, and a record that fails again."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvref
from kvcheck.play.steps import Program
from kvcheck.records.trace import replay_trace
from tests.lockstep.production import tell
from tests.machines.__main__ import fails_again, run
from tests.mistakes import mistaken


def test_what_fails_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it needs a request that is told again: records do not hold that."""
    subject = mistaken("HashedBlocksToTheFront")
    for number in range(1, 9):
        story = run("calls", subject, number)
        assert isinstance(story, Program)
        tell(story, "tests.mistakes:HashedBlocksToTheFront", subject, tmp_path / "kept.jsonl")
        said = capsys.readouterr().out
        assert said.startswith("from kvcheck.discovery import find_implementation")
        if "Retell(" not in said:
            break
        assert said.endswith("# not kept: records cannot hold it (follow)\n")
    assert said.endswith(f"# kept as {tmp_path / 'kept.jsonl'}\n")
    names: dict[str, object] = {}
    exec(said, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    with pytest.raises(AssertionError):
        test()  # type: ignore[operator]
    assert list(fails_again(tmp_path, subject))
    assert replay_trace(tmp_path / "kept.jsonl", kvref.implementation()).passed
