"""docs/implement-your-own.md is executed: its code, its changes, its commands, their output."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import kvref
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.report import violation_lines
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvspec.interface import Implementation
from tests.cases import every_second
from tests.commands import kvspec
from tests.examples.window import rows, versions
from tests.remote.test_example_servers import RUST
from tests.source import ROOT
from tests.test_readme import matches

PAGE = (ROOT / "docs/implement-your-own.md").read_text(encoding="utf-8")
FOLDER = ROOT / "examples/own_manager"
FIRST = (FOLDER / "first.py").read_text(encoding="utf-8")
FINAL = (FOLDER / "final.py").read_text(encoding="utf-8")


OTHERS = (("javascript", "node server.mjs"), ("java", "java Server.java"))
"""Other languages of the first server, and how each is run."""


@dataclass(frozen=True)
class Run:
    """A command of the page, what it shows, and the manager and the server as they are there."""

    arguments: tuple[str, ...]
    output: tuple[str, ...]
    manager: str
    server: str

    @property
    def broken(self) -> list[str]:
        return [line.split()[1] for line in self.output if line.startswith("  rule ")]


def changed(text: str, diff: str) -> str:
    """Apply a diff without line numbers; each place must occur exactly once."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def runs() -> Iterator[Run]:
    """Yield the page's runs in order; once there is a server, changes apply to it."""
    manager, server = FIRST, ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        if language == "python":
            server = block
        elif language == "diff" and server:
            server = changed(server, block)
        elif language == "diff":
            manager = changed(manager, block)
        elif language == "console":
            command, *output = block.splitlines()
            assert command.startswith("$ kvspec ")
            yield Run(tuple(shlex.split(command)[2:]), tuple(output), manager, server)
        else:
            assert language in dict(OTHERS)


RUNS = tuple(runs())
DIRECTED = [run for run in RUNS if "directed" in run.arguments]
PROBES = [run for run in RUNS if run.arguments[0] == "probe"]
RANDOM = [run for run in RUNS if run.arguments[0] == "check" and run not in DIRECTED]


def loaded(text: str, folder: Path) -> ModuleType:
    path = folder / "mymanager.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mymanager", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checked(text: str, folder: Path, num_programs: int) -> Report:
    """Check a version of the manager at level safety, with so many random programs."""
    subject: Implementation = loaded(text, folder).implementation()
    budget = dict(BUDGETS)["fast"].counted(num_programs)
    options = Options(Level.SAFETY, budget, name="mymanager:implementation")
    return Suite(subject, kvref.implementation(), options).run()


def test_the_page_goes_from_the_first_version_to_the_final_one() -> None:
    assert RUNS[-1].manager.replace("A first KV-cache", "A small KV-cache") == FINAL
    assert [len(each) for each in (DIRECTED, RANDOM, PROBES)] == [6, 2, 2]
    for text in (FIRST, FINAL):
        assert f"{len(text.splitlines())} lines" in PAGE


def made(run: Run, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder with nothing but the reader's own files."""
    (folder / "mymanager.py").write_text(run.manager, encoding="utf-8")
    (folder / "server.py").write_text(run.server, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "kvcheck.cli", *run.arguments],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("run", PROBES, ids=lambda run: run.output[-1].partition(";")[0])
def test_a_probe_shows_what_the_page_says(run: Run, tmp_path: Path) -> None:
    done = made(run, tmp_path)
    assert matches(run.output, done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(("language", "command"), OTHERS)
def test_a_first_server_in_another_language_answers_the_same(
    language: str, command: str, tmp_path: Path
) -> None:
    program, _, file = command.partition(" ")
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    assert f"<code>cmd:{command}</code>" in PAGE
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / file).write_text(text, encoding="utf-8")
    done = kvspec(tmp_path, "probe", f"cmd:{command}")
    assert matches(PROBES[0].output, done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(
    "run", every_second(DIRECTED), ids=lambda run: f"{run.broken or run.arguments[1]}"
)
def test_a_directed_check_shows_what_the_page_says(run: Run, tmp_path: Path) -> None:
    done = made(run, tmp_path)
    assert done.returncode == (1 if run.broken else 0), done.stdout + done.stderr
    assert matches(run.output, done.stdout), done.stdout
    assert set(re.findall(r"^  rule +(KV-[A-Z]+-\d+)", done.stdout, re.MULTILINE)) == set(
        run.broken
    )


def test_random_programs_find_what_directed_ones_do_not(tmp_path: Path) -> None:
    found = checked(RANDOM[0].manager, tmp_path, 300)
    (violation,) = found.violations
    assert not violation.is_example
    assert RANDOM[0].broken == [violation.rule]
    shown = "\n".join(violation_lines(found.options, violation))
    for text in ("\n".join(RANDOM[0].output), shown):
        assert "shown by  random" in text
        assert re.search(r"observed  hit of r\d .*which\s+holds\s+nothing", text, re.DOTALL)


def test_the_final_version_conforms_at_level_safety(tmp_path: Path) -> None:
    found = checked(FINAL, tmp_path, 300)
    assert found.conforms
    assert found.random == 300
    assert "unbroken" in {outcome.verdict for outcome in rule_outcomes(found).values()}
    assert RANDOM[1].broken == []


@pytest.mark.deep
def test_the_rows_about_a_window_are_what_is_found() -> None:
    assert "\n".join(rows()) in PAGE


def test_the_last_row_about_a_window_is_the_example_itself() -> None:
    added, text = versions()[-1]
    assert text == (RUST.source / "manager.rs").read_text(encoding="utf-8")
    assert f"| {added} | none |" in PAGE
    assert len({text for _, text in versions()}) == len(versions())
