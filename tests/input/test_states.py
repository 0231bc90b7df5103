"""Files for `--resume`: read as they were written, or refused. Damage is never accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.cli._support import OLD_STATE_HEAD, STATE_HEAD, read_state, write_state
from kvcheck.judge.state import State
from kvspec.errors import FormatError

SMALL = State(
    {"name": "kvref", "level": "safety"},
    batch=3,
    seconds=1.5,
    about=("KV-CFG-1",),
)


@pytest.fixture(name="path")
def written(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    write_state(SMALL.to_json(), path)
    return path


def test_a_state_comes_back(path: Path) -> None:
    found = read_state(path, "check")
    assert found is not None
    assert State.from_json(*found) == SMALL
    assert read_state(path.with_name("nothing"), "check") is None


def test_no_byte_of_a_state_can_change(path: Path) -> None:
    """Change, remove and insert a byte at each position, and cut the file there."""
    whole = path.read_bytes()
    damaged = 0
    for at in range(len(whole)):
        for other in (bytes([whole[at] ^ 1]), bytes([whole[at] ^ 0x80]), b"", whole[at:][:1] * 2):
            path.write_bytes(whole[:at] + other + whole[at + 1 :])
            with pytest.raises(FormatError):
                read_state(path, "check")
            damaged += 1
        path.write_bytes(whole[:at])
        with pytest.raises(FormatError):
            read_state(path, "check")
    assert damaged > 1_000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps(SMALL.to_json()).encode(), "written by an older kvspec without a checksum"),
        (STATE_HEAD + b"0" * 64 + b"\n{}\n", "damaged: its checksum does not match; "),
        (OLD_STATE_HEAD + b"0" * 64 + b"\n{}\n", "written by an older kvspec; remove it"),
        (b"something else", "not a saved state of kvspec"),
        (b"", "not a saved state of kvspec"),
    ],
    ids=["old", "damaged", "other head", "another file", "empty"],
)
def test_a_command_says_what_to_do_about_a_bad_state(
    tmp_path: Path,
    content: bytes,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Leave the file as it is."""
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert main(["check", "kvref", "--budget", "directed", "--resume", str(path)]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert len(shown.splitlines()) == 1
    assert path.read_bytes() == content
