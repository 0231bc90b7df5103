"""The command as a whole: its commands, options, errors and exit codes."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

from kvcheck.cli import doctor, main
from kvcheck.cli._commands import COMMANDS, Entry
from kvspec.errors import FormatError
from tests.cases import Case, cases
from tests.commands import python, said_by
from tests.source import ROOT

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


README = ROOT / "README.md"


def test_every_help_has_the_options_of_all_and_the_one_table_of_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for entry in COMMANDS:
        assert main([entry.name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--color" in shown
        assert "-q, --quiet" in shown
        assert "130  interrupted" in shown


def test_the_readme_lists_the_commands_that_have_an_option() -> None:
    rows = re.findall(r"^\| `(-[^ `]+)[^|]* \| (.*) \|$", README.read_text("utf-8"), re.MULTILINE)
    listed = {option: re.findall(r"`([a-z]+)`", commands) for option, commands in rows}
    assert listed == {"-q": []} | {option: having(option) for option in SHARED}


SHARED = ("--json", "-v", "-x", "--html", "--plot")


def having(option: str) -> list[str]:
    modules = ((entry.name, import_module(entry.module)) for entry in COMMANDS)
    return [name for name, m in modules if any(option in p.opts for p in m.command.params)]


def test_examples_in_full_have_a_line_each_and_as_json_an_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = said_by("examples kvref --rules kv-sw-2 -v", capsys)
    assert said[0].endswith(": passed")
    assert said[-2] == f"kvref: {len(said) - 2} examples passed, 0 failed, 0 left out"
    assert main(["examples", "kvref", "--rules", "kv-sw-2", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(said) - 2
    assert rows[0].items() >= {"passed": True, "lacks": ""}.items()
    assert rows[0]["rules"] == ["KV-SW-2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_gives_defaults_and_the_line_has_the_last_word(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, project = folder / "kvspec.toml", folder / "pyproject.toml"
    project.write_text('[tool.kvspec.lines]\nx = 1\n[tool.kvspec.plan]\nmodel = "none"\n')
    assert "none: no file, and none of" in said_by("plan", capsys)[0]
    own.write_text('[plan]\nmodel = "llama-3.1-8b"\nmemory-gib = 20\n[rule]\nrule = "kv-pool-4"\n')
    assert "20.00 GiB" in "".join(said_by("plan --tensor 1", capsys))
    assert "30.00 GiB" in "".join(said_by("plan --memory-gib 30", capsys))
    assert said_by("rule", capsys)[0].startswith("KV-POOL-4")
    own.write_text('[check]\nimpl = "kvref"\nrules = "kv-pool-4"\nbudget = "directed"\n')
    assert "The one rule" in said_by("check", capsys)[1]


def test_colours_are_where_they_are_asked_for_and_quiet_leaves_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "check kvref --rules kv-pool-4 --budget directed"
    plain, coloured = (said_by(f"{command} --color {w}", capsys) for w in ("never", "always"))
    assert coloured[0] == f"\x1b[1;32m{plain[0]}\x1b[0m"
    assert coloured[1:] == plain[1:]
    assert said_by(f"{command} -q", capsys) == [plain[0], "exit code 0"]


def test_a_shell_is_given_completions() -> None:
    code = "import os, sys; from kvcheck.cli import main; sys.exit(main())"
    words = {"COMP_WORDS": "kvspec che", "COMP_CWORD": "1", "_KVSPEC_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=words | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "plain,check\n"


LINE = {"timestamp": 9, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
FILES = {
    "bad.json": "{",
    "tokenizer.json": json.dumps({"version": "1.0", "model": WORDS}),
    "empty.jsonl": "\n\n",
    "late.jsonl": f"{json.dumps(LINE)}\n{json.dumps({**LINE, 'timestamp': 3})}\n",
    "large.jsonl": json.dumps({**LINE, "input_length": 64 * 400, "hash_ids": [*range(50)]}),
}


@pytest.mark.parametrize("case", cases(__file__, "refused.txt"), ids=str)
def test_what_cannot_run_is_one_line_and_exit_code_2(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "--tokenizer" in case.given[0]:
        pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    files = FILES | ({"kvspec.toml": "\n".join(case.given[1:])} if case.given[1:] else {})
    for name, content in files.items():
        Path(name).write_text(content, "utf-8")
    said = said_by(case.given[0], capsys)
    assert len(said) == 2
    assert said[1] == "exit code 2"
    case.expect([said[0].replace(f"{tmp_path}/", "").replace(f"{ROOT}/", "")])
    assert {path.name for path in tmp_path.iterdir()} == files.keys()
