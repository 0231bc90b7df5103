"""README.md: its commands run and show what it says, its examples print what it says."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.source import ROOT, shown, text_files

README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")

ELLIPSIS = "…"


@dataclass(frozen=True)
class Console:
    """A command of a `console` block, and the output the block shows below it."""

    command: str
    output: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        return self.command.split(" && ")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def consoles() -> list[Console]:
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *output = part.splitlines()
            found.append(Console(command, tuple(output)))
    return found


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Check the output; `…` matches anything, alone in a line any lines."""
    pattern = ""
    for line in shown:
        if line == ELLIPSIS:
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += re.escape(line).replace(re.escape(ELLIPSIS), r"[^\n]*") + "\n"
    return re.fullmatch(pattern, printed) is not None


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_readme_has_the_two_commands_and_ci_executes_them_word_for_word() -> None:
    main, tests = (console.parts for console in consoles() if "pip install" in console.command)
    assert tests == ["pip install -e '.[dev]'", "pytest -n auto"]
    assert main[0].startswith("pip install -e ")
    assert main[1].startswith("kvspec replay ")
    executed = [line.strip().removesuffix(' | tee "$work/pytest.log"') for line in CI.splitlines()]
    for part in (*main, *tests):
        assert part in executed, f".ci/run does not execute: {part}"


# Installing again, and running the tests from a test, is left to .ci/run.
RUN_HERE = tuple(
    pytest.param(part, console.output, id=part[:40])
    for console in consoles()
    for part in console.parts
    if part.startswith("kvspec ")
)


@pytest.mark.parametrize(("command", "output"), RUN_HERE)
def test_a_command_of_the_readme_shows_what_it_says(
    command: str, output: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = command.split()
    done = run([sys.executable, "-m", "kvcheck.cli", *arguments[1:]], tmp_path)
    assert done.returncode == 0, done.stderr
    assert matches(output, done.stdout), done.stdout
    for option, value in itertools.pairwise(arguments):
        if option in ("--json", "--plot", "--html"):
            assert (tmp_path / value).stat().st_size > 0


@pytest.mark.parametrize("code", blocks("python"))
def test_an_example_of_the_readme_prints_what_it_says(code: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert done.stdout.splitlines() == expected


def test_every_block_is_of_a_kind_that_is_run() -> None:
    opened = re.findall(r"^```(\w*)$", README, re.MULTILINE)[::2]
    assert set(opened) <= {"console", "python"}
    assert {"console", "python"} <= set(opened)


DOCUMENTS = tuple(path for path in text_files() if path.suffix == ".md")


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_links_inside_the_repository_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


NAMED = re.compile(r"`((?:tests|kvcheck|kvref|kvfast|spec|proofs|bench|docs|examples)/[\w./-]+)`")


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_files_that_a_page_names_are_there(path: Path) -> None:
    text = re.sub(r"`[^`]+` of commit [0-9a-f]{8}", "", path.read_text(encoding="utf-8"))
    for name in NAMED.findall(text):
        found = (base / name for base in (ROOT, path.parent, ROOT / "proofs"))
        assert "CHAPTER" in name or any(each.exists() for each in found), name


def test_the_comparison_of_output_can_fail() -> None:
    assert matches(("a … c", "…", "z"), "a b c\nmore\nz\n")
    assert matches(("a",), "a\n")
    assert not matches(("a",), "a\nb\n")
    assert not matches(("a", "…", "z"), "a\ny\n")
    assert not matches(("a.c",), "abc\n")
