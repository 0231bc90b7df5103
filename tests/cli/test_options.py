"""What every command has: names that are nearly right, defaults from a file, colours, quiet."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.cli._commands import COMMANDS
from tests.commands import said_by
from tests.source import ROOT

README = ROOT / "README.md"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("chek kvref", "No such command 'chek'; did you mean check?"),
        ("replay demo --impl kvref --num-block 3", "'--num-blocks'?"),
        ("rule kv-pol-44", "'; did you mean KV-POL-4?"),
        ("check kvref --rules kv-pool-4,kv-pol-99", "99: no rule matches; did you mean"),
        ("explore --config retentio", "no configuration 'retentio'; did you mean retention?"),
        ("replay demo --impl kvref --sample 7", "--sample 7.0: must be a number above 0"),
    ],
)
def test_a_name_that_is_nearly_right_is_asked_for(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_by(command, capsys)
    assert says in said[0]
    assert said[1:] == ["exit code 2"]


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[plam]", "kvspec.toml: [plam] is no command of kvspec; did you mean plan?"),
        ("plan = 1", "kvspec.toml: plan must be a table of options"),
        ("[plan]\nmemory = 1", "kvspec.toml: [plan] has no option memory; did you mean"),
        ("[plan]\ntensor = 'x'", "Invalid value for '--tensor': 'x' is no integer"),
        ("[plan", "kvspec.toml: "),
    ],
)
def test_a_file_with_a_mistake_is_one_line(
    content: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "kvspec.toml").write_text(content)
    said = said_by("plan llama-3.1-8b", capsys)
    assert says in said[0]
    assert said[1:] == ["exit code 2"]


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
