"""Run every command of an installed kvspec in an empty directory, as a user would.

    python -I smoke.py

No test file: .ci/run starts it where only the wheel is installed and the repository is out of
reach, and test_packaging runs the same calls here. A command without a call below fails.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One run of the command: its arguments, its exit code, words of its output, its files."""

    args: tuple[str, ...]
    shows: str
    exit_code: int = 0
    writes: tuple[str, ...] = ()


def read_calls() -> Iterator[Call]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for block in text.split("\n\n")[1:]:
        command, *lines = block.splitlines()
        args = shlex.split(command.replace("PYTHON", shlex.quote(sys.executable)))
        found = dict(line.strip().split(" ", 1) for line in lines)
        exit_code, writes = int(found.get("ends", 0)), found.get("writes", "").split()
        yield Call(tuple(args), found.get("shows", ""), exit_code, tuple(writes))


CALLS = tuple(read_calls())


def problems(call: Call, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "kvcheck.cli", *call.args],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = []
    if done.returncode != call.exit_code:
        found.append(f"exit code {done.returncode}, not {call.exit_code}")
    if call.shows not in done.stdout:
        found.append(f"does not show {call.shows!r}")
    if "Traceback" in done.stdout:
        found.append("shows a traceback")
    found += [f"did not write {name}" for name in call.writes if not (folder / name).is_file()]
    return found and [f"kvspec {' '.join(call.args)}: {', '.join(found)}", done.stdout]


def main() -> int:
    from kvcheck.cli._commands import COMMANDS

    called = {call.args[0] for call in CALLS}
    found = [f"no call of kvspec {entry.name}" for entry in COMMANDS if entry.name not in called]
    for call in CALLS:
        found += problems(call, Path.cwd())
    print("\n".join(found) or f"{len(CALLS)} calls as they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
