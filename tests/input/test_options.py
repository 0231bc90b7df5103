"""Every option of every command with nonsense values: an exit code and one line."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import pytest

from kvcheck.cli import main
from kvcheck.cli._commands import COMMANDS
from kvcheck.records.select import shipped_records
from tests.source import ROOT

VALUES = (
    *("9" * 5_000, "1000000000000000", "-1", "0", "1e400", "-inf", "nan", "", "²", "x"),
    *("x" * 5_000, "\udcff", "cmd:", "a:b", ".", "nothing/at/all", "?seed=9", "-"),
)

RECORD = str(shipped_records() / "identities.jsonl")
HISTORY = str(ROOT / "examples/hazards/vllm-52360.jsonl")
QUICK: Mapping[str, Sequence[str]] = {
    "bench": ["--impl", "nowhere"],
    "check": ["kvref", "--budget", "static", "--level", "safety"],
    "doctor": [],
    "examples": ["kvref", "--rules", "KV-SW-1"],
    "explore": ["--list"],
    "golden": [RECORD, "--impl", "kvref"],
    "hazards": [HISTORY],
    "plan": ["llama-3.1-8b"],
    "probe": ["nowhere"],
    "prompts": ["demo", "--limit", "1"],
    "redact": [RECORD, "-o", "out"],
    "replay": ["demo", "--impl", "kvref", "--limit", "1", "--quiet"],
    "rule": ["KV-SW-1"],
    "serve": ["nowhere"],
    "shrink": [RECORD, "--impl", "kvref", "-o", "out"],
    "vectors": ["--set", "rswa", "-o", "out"],
    "view": [RECORD, "-o", "out"],
    "whatif": ["demo", "--limit", "1", "--sizes", "2"],
}
"""Arguments with which a command is soon done."""

LONG = ("--limit",)
"""What takes long with a value that is right, as any folder or large number of requests is."""


def calls(name: str) -> Iterator[list[str]]:
    """Yield the command with each of its options and arguments in turn."""
    command = importlib.import_module(f"kvcheck.cli.{name}").command
    base = [name, *QUICK[name]]
    for parameter in command.params:
        if parameter.opts[0] in LONG:
            continue
        for value in VALUES:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                yield [*base, parameter.opts[0], value]
            elif isinstance(parameter, click.Argument) and QUICK[name]:
                yield [name, value, *QUICK[name][1:]]


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS])
def test_an_option_with_nonsense_is_one_line(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for arguments in calls(name):
        code = main(arguments)
        said = capsys.readouterr().err
        shown = [argument[:30] for argument in arguments]
        if code not in (0, 1, 2) or "Traceback" in said:
            wrong.append((shown, code, said[-300:]))
        elif code == 2 and not said.startswith("kvspec: error: "):
            wrong.append((shown, code, said[:300]))
    assert not wrong
