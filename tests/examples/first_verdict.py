"""The commands that a newcomer types first, in examples/README.md: run as written, and timed.

`python -m tests.examples.first_verdict` writes the table of seconds.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.source import ROOT
from tests.test_readme import matches

PAGE = ROOT / "examples/README.md"
MARK = "<!-- `python -m tests.examples.first_verdict` writes this table -->\n"


@dataclass(frozen=True)
class Command:
    """A line of a console, and what is shown below it."""

    line: str
    output: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Purpose of the command, which is its column in the table."""
        found = re.match(r"kvspec (probe|check)", self.line)
        return found[1] if found else "build"


def transcripts() -> dict[str, tuple[Command, ...]]:
    """Return the commands of each server."""
    text = PAGE.read_text(encoding="utf-8")
    found = {}
    for name, block in re.findall(r"^(\w[\w+]*):\n\n```console\n(.*?)^```$", text, re.M | re.S):
        parts = [part.splitlines() for part in block.removeprefix("$ ").split("\n$ ")]
        found[name] = tuple(Command(line, tuple(output)) for line, *output in parts)
    return found


def run(commands: tuple[Command, ...]) -> Iterator[tuple[Command, str, float]]:
    """Run the commands in one new folder; yield each with its output and CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KVSPEC": str(ROOT), "NO_COLOR": "1"}
        for command in commands:
            before = _seconds()
            done = subprocess.run(
                ["bash", "-e", "-c", command.line],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert matches(command.output, done.stdout), done.stdout
            yield command, done.stdout, _seconds() - before


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Write the table behind its mark."""
    kinds = ("build", "probe", "check")
    lines = [f"| seconds of one core | {' | '.join(kinds)} | all |", "|---|---:|---:|---:|---:|"]
    for name, commands in transcripts().items():
        seconds = dict.fromkeys(kinds, 0.0)
        for command, _, each in run(commands):
            seconds[command.kind] += each
        cells = [f"{each:.1f}" for each in (*seconds.values(), sum(seconds.values()))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    before, _, after = PAGE.read_text(encoding="utf-8").partition(MARK)
    rest = after[after.index("\n\n") :]
    PAGE.write_text(before + MARK + "\n".join(lines) + rest, encoding="utf-8")


if __name__ == "__main__":
    main()
