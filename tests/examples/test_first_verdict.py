"""The commands that a newcomer types first, in examples/README.md: run as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.source import ROOT
from tests.test_readme import matches

PAGE = (ROOT / "examples/README.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Command:
    """A line of a console, and what is shown below it."""

    line: str
    output: tuple[str, ...]


def transcripts() -> dict[str, tuple[Command, ...]]:
    """Return the commands of each server."""
    found = {}
    for name, block in re.findall(r"^(\w[\w+]*):\n\n```console\n(.*?)^```$", PAGE, re.M | re.S):
        parts = [part.splitlines() for part in block.removeprefix("$ ").split("\n$ ")]
        found[name] = tuple(Command(line, tuple(output)) for line, *output in parts)
    return found


TRANSCRIPTS = transcripts()


def test_each_server_is_built_probed_and_checked() -> None:
    assert list(TRANSCRIPTS) == ["Rust", "C++", "Python"]
    for _, *others in TRANSCRIPTS.values():
        assert [one.line.split()[:2] for one in others] == [
            ["kvspec", "probe"],
            ["kvspec", "check"],
        ]


@pytest.mark.deep
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stranger_sees_what_the_page_shows(name: str, tmp_path: Path) -> None:
    program = TRANSCRIPTS[name][0].line.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "KVSPEC": str(ROOT), "NO_COLOR": "1"}
    for command in TRANSCRIPTS[name]:
        done = subprocess.run(
            ["bash", "-e", "-c", command.line],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert matches(command.output, done.stdout), done.stdout
