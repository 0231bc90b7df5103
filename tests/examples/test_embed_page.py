"""docs/embed.md: its code is the example's, or runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.source import ROOT
from tests.test_readme import matches

PAGE = (ROOT / "docs/embed.md").read_text(encoding="utf-8")
FILES = [
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples/embed").glob("*.py"))
]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [code for language, code in BLOCKS if any(code in text for text in FILES)]
RUN = [code for language, code in BLOCKS if language == "python" and code not in SHOWN]


def test_the_page_shows_the_example_as_it_is_and_runs_the_rest(tmp_path: Path) -> None:
    assert {language for language, _ in BLOCKS} == {"python", "console"}
    assert [code.partition("(")[0] for code in SHOWN] == ["    def step"]
    code = "".join(RUN)
    done = run(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(expected) == code.count("print(")
    assert done.stdout.splitlines() == expected


def test_the_demo_prints_what_the_page_says() -> None:
    (console,) = [code for language, code in BLOCKS if language == "console"]
    command, *output = console.splitlines()
    assert command == "$ python -m examples.embed.demo"
    done = run(["-m", "examples.embed.demo"], ROOT)
    assert done.returncode == 0, done.stderr
    assert matches(tuple(output), done.stdout), done.stdout


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
