"""The command as a whole: its list, its exit codes, and one clear line for every error."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from kvcheck.cli import doctor, main
from kvcheck.cli._commands import COMMANDS, Entry
from kvspec.errors import FormatError
from tests.commands import python

KVSPEC = (sys.executable, "-m", "kvcheck.cli")

Fail = Callable[[BaseException], int]


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Fail:
    def run(error: BaseException) -> int:
        def callback() -> None:
            raise error

        monkeypatch.setattr(doctor, "command", click.Command("doctor", callback=callback))
        return main(["doctor"])

    return run


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_a_command_is_where_the_list_says_and_its_help_begins_with_its_line(entry: Entry) -> None:
    command = importlib.import_module(entry.module).command
    assert isinstance(command, click.Command)
    assert command.help is not None
    assert command.help.splitlines()[0] == entry.summary


def test_help_lists_every_command_without_importing_any() -> None:
    code = """
import sys
from kvcheck.cli import main
main(["--help"])
heavy = {"matplotlib", "hypothesis", "numpy", "zstandard", "torch", "kvref", "kvfast"}
loaded = {name.partition(".")[0] for name in sys.modules} & heavy
commands = {name for name in sys.modules if name.startswith("kvcheck.cli.") and "._" not in name}
sys.exit(f"imported: {loaded | commands}" if loaded | commands else 0)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    for entry in COMMANDS:
        assert f"  {entry.name} " in done.stdout
        assert entry.summary in " ".join(done.stdout.split())


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FormatError("a.jsonl", 3, "hash_ids", "missing"), "a.jsonl, line 3, field 'hash_ids': m"),
        (FileNotFoundError(2, "No such file or directory", "a.jsonl"), "a.jsonl: No such file or"),
        (OSError("closed"), "closed"),
    ],
    ids=["contract", "file", "other OSError"],
)
def test_an_expected_error_is_one_line_without_a_traceback(
    fail_with: Fail, error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(error) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"kvspec: error: {line}")
    assert len(shown.splitlines()) == 1


def test_a_defect_shows_its_traceback_and_is_not_taken_for_a_failed_check(
    fail_with: Fail, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(ZeroDivisionError("defect")) == 2
    assert "ZeroDivisionError: defect" in capsys.readouterr().err


def test_an_interrupt_ends_with_130_and_one_line(
    fail_with: Fail, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "kvspec: error: interrupted\n"


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (0, 0), (1, 1)])
def test_a_command_returns_its_exit_code(
    answer: int | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = click.Command("doctor", callback=lambda: answer)
    monkeypatch.setattr(doctor, "command", command)
    assert main(["doctor"]) == code


@pytest.mark.parametrize("command", ["doctor", "explore --list"])
def test_a_reader_that_goes_away_ends_the_command_quietly(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [*KVSPEC, *command.split()],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*KVSPEC, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "kvspec: error: No space left on device\n"


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kvspec {version('kvspec')}\n"
