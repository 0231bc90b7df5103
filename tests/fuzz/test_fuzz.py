"""The fuzzer finds nothing, and it finds what is planted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from kvcheck.play.steps import Program
from kvfast._build import is_compiled
from tests.fuzz.core import PLANTED, program_of
from tests.fuzz.drawing import draw_config
from tests.lockstep.choices import OTHERS, Tally


def fuzz(root: Path, *given: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: it forks."""
    command = [sys.executable, "-m", "tests.fuzz.core", "--seed", "ci", *given]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("build", ["compiled", "uncompiled"])
def test_nothing_is_found(root: Path, build: str) -> None:
    if build == "compiled" and not is_compiled():
        pytest.skip("there is no compiled build")
    done = fuzz(root, "--build", build, "--stories", "150", "--seconds", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    calls = done.stdout.splitlines()[-1].partition(" hostile calls, nothing found")[0]
    assert int(calls) > 4000


KEYS = {
    "Leaks": "invariant ",
    "RaisesABareError": "IndexError in checks.py checked_block",
    "RefusesLate": "changed by a refused",
    "EndsTheProcess": "ended with -11",
    "NeverEnds": "hang",
    "HashesOnce": "tokens and hashes part",
}
"""Of each planted hole, how the key of its finding begins."""


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(root: Path, name: str) -> None:
    given = ("--build", "uncompiled", "--plant", name, "--patience", "1")
    done = fuzz(root, *given, "--stories", "20")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\n=== {KEYS[name]}" in done.stdout
    number = done.stdout.rpartition("--story ")[2].split()[0]
    assert f"\n=== {KEYS[name]}" in fuzz(root, *given, "--story", number).stdout


def test_every_option_is_drawn() -> None:
    tally = Tally()
    for seed in range(400):
        tally.add_program(Program(draw_config(Random(seed)), ()))
    assert not tally.never_drawn_small()
    assert all(tally.counts[f"choice of {name}"] for name in OTHERS)


def test_a_seed_gives_the_same_program_every_time() -> None:
    assert program_of(Random("x/1")) == program_of(Random("x/1")) != program_of(Random("x/2"))
