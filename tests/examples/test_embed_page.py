"""Pages and small examples: the report, the embedding, first verdicts, nano-vLLM."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.nanovllm import engine
from kvcheck.rulebook import rule_sentences
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


FOLDER = ROOT / "examples/report"
PAGE_OF_REPORT = (FOLDER / "drawn.html").read_text(encoding="utf-8")


def test_the_page_is_small_and_needs_nothing_else() -> None:
    assert len(PAGE_OF_REPORT.encode()) < 300_000
    assert not re.search(r" src=|https?://|@import|url\(", PAGE_OF_REPORT)
    assert "default-src 'none'" in PAGE_OF_REPORT
    assert not re.search(r"/(?:home|tmp|root|work)/", PAGE_OF_REPORT)


def test_it_names_rules_that_exist_and_has_stories_to_draw() -> None:
    assert set(re.findall(r"KV-[A-Z]+-\d+", PAGE_OF_REPORT)) <= set(rule_sentences())
    assert PAGE_OF_REPORT.count('<div class="story">') >= 3


def test_the_command_that_wrote_it_is_beside_it() -> None:
    assert "--html drawn.html`" in (FOLDER / "README.md").read_text(encoding="utf-8")


PAGE_OF_FIRST_VERDICT = (ROOT / "examples/README.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Command:
    """A line of a console, and what is shown below it."""

    line: str
    output: tuple[str, ...]


def transcripts() -> dict[str, tuple[Command, ...]]:
    """Return the commands of each server."""
    found = {}
    for name, block in re.findall(
        r"^(\w[\w+]*):\n\n```console\n(.*?)^```$", PAGE_OF_FIRST_VERDICT, re.M | re.S
    ):
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


@pytest.mark.parametrize("is_broken", [False, True])
def test_nano_vllm_answers_the_same_on_kvfast(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    if importlib.util.find_spec("nanovllm") is None:
        pytest.skip("no checkout of nano-vllm on PYTHONPATH")
    if not is_broken:
        assert engine.compare(100, 1).startswith("100 sequences, the same ")
        return

    def may_append(manager: engine.BlockManager, seq: Any) -> None:
        """Have the slot before the last token's."""
        request = manager.request_of(seq)
        request.num_computed_tokens = len(seq) - 2
        manager.take(seq, request, 1)

    monkeypatch.setattr(engine.BlockManager, "may_append", may_append)
    with pytest.raises((SystemExit, IndexError)):
        engine.compare(100, 1)
