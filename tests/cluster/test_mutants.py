"""Mutants that are divided: the same by any workers, each once; what they end is not a worker."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvcheck.processes import Processes, exit_code
from kvcheck.tasks import Workers
from tests.mutation import draw
from tests.mutation.draw import MUTMUT, make_mutants, packed, run

CODE = """
import os

def added(a, b):
    return a + b

def unseen(a):
    return a + 1

def loops(n):
    while n > 0:
        n -= 1

def ends(n):
    if n < 0:
        os.kill(os.getpid(), 9)

def cases():
    return [1, 2]

def nobody():
    return 3
"""
TESTS = """
import pytest
from small import code

@pytest.mark.parametrize("number", code.cases())
def test_added(number):
    assert code.added(number, 2) == number + 2

def test_the_rest():
    code.unseen(1)
    code.loops(2)
    code.ends(0)
    code.cases()
"""
EXPECTED = {
    "x_added__mutmut_1": "killed",
    "x_unseen__mutmut_1": "survived",
    "x_loops__mutmut_4": "timeout",
    "x_ends__mutmut_1": "ended its process",
    "x_cases__mutmut_1": "killed",
    "x_nobody__mutmut_1": "no tests",
}
QUICK = {name: EXPECTED[name] for name in EXPECTED if EXPECTED[name] not in ("timeout", "no tests")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    for name, text in (("small/__init__", ""), ("small/code", CODE), ("tests/test_it", TESTS)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    values: tuple[list[str], ...] = (["small"], ["small/*"], [], [], [*draw.ARGUMENTS], ["tests"])
    keys = ("packages", "modules", "never", "also", "arguments", "tests")
    own = MUTMUT.format(**{k: json.dumps(v) for k, v in zip(keys, values, strict=True)})
    (folder / "pyproject.toml").write_text(own)
    make_mutants(folder)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project with no verdict on its mutants; each may take seconds."""
    monkeypatch.setattr(draw, "SLACK_S", 5.0)
    return Path(shutil.copytree(made, tmp_path / "place"))


def found(place: Path, workers: Workers | None, chosen: Iterable[str] = EXPECTED) -> dict[str, str]:
    tried = run(place, [f"small.code.{name}" for name in chosen], workers)
    return {each.name.removeprefix("small.code."): each.status for each in tried}


def test_a_mutant_ends_itself_and_nobody_else(place: Path, request: pytest.FixtureRequest) -> None:
    """Include with --deep one that never ends, which takes its time limit."""
    assert found(place, None, QUICK) == QUICK
    (place / "statuses.json").unlink()
    expected = EXPECTED if request.config.getoption("--deep") else QUICK
    with Processes(2) as workers:
        assert found(place, workers, expected) == expected


BEGINS = """
import os, subprocess, sys, time
file, seconds = sys.argv[1:]
with open(file, "w") as out:
    out.write(str(subprocess.Popen(["sleep", "600"]).pid))
time.sleep(int(seconds))
os._exit(int(os.environ["CODE"]))
"""


@pytest.mark.parametrize(("sleeps_s", "limit_s", "answer"), [(0, 60, 7), (600, 2, None)])
def test_what_a_program_began_ends_with_it(
    sleeps_s: int, limit_s: float, answer: int | None, tmp_path: Path
) -> None:
    (tmp_path / "begins.py").write_text(BEGINS)
    file = tmp_path / "number"
    arguments = ["begins.py", str(file), str(sleeps_s)]
    assert exit_code(packed(tmp_path), arguments, {"CODE": "7"}, limit_s) == answer
    assert has_ended(int(file.read_text()))


def has_ended(number: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            text = Path(f"/proc/{number}/stat").read_text("ascii")
        except FileNotFoundError:
            return True
        if text.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False
