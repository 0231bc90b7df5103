"""A short run of the fuzzer finds nothing, and it finds what is planted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from kvcheck.judge.choices import OTHERS
from kvcheck.play.steps import Program
from kvfast._build import is_compiled
from tests.fuzz.configs import draw_config
from tests.fuzz.corpus import written
from tests.fuzz.draw import draw_story
from tests.fuzz.names import KNOWN
from tests.fuzz.planted import PLANTED
from tests.fuzz.reach import reached
from tests.lockstep.tally import Tally

STORIES = 60


def fuzz(root: Path, *given: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it forks."""
    command = [sys.executable, "-m", "tests.fuzz.core", "--seed", "ci", *given]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("build", ["compiled", "uncompiled"])
def test_nothing_is_found(root: Path, build: str) -> None:
    if build == "compiled" and not is_compiled():
        pytest.skip("there is no compiled build")
    done = fuzz(root, "--build", build, "--stories", str(STORIES), "--seconds", "300", "--whole")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{STORIES} stories, " in done.stdout
    assert done.stdout.endswith("lines, 0 findings\n")


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(root: Path, name: str) -> None:
    given = ("--build", "uncompiled", "--plant", name, "--stories", "200", "--whole")
    done = fuzz(root, *given, "--patience", "1", "--until", PLANTED[name][1])
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\n=== {PLANTED[name][1]}" in done.stdout


def test_a_story_is_shortened_and_can_be_played_again(root: Path, tmp_path: Path) -> None:
    given = ("--build", "uncompiled", "--plant", "crash")
    done = fuzz(root, *given, "--stories", "60", "--until", "ended with -11")
    story = (
        done.stdout.partition("=== ended with -11")[2]
        .partition("--story -`:\n\n")[2]
        .partition("\n\n")[0]
    )
    assert 1 <= len(story.splitlines()) <= 6, done.stdout
    file = tmp_path / "story"
    file.write_text(story, "utf-8")
    assert "\n=== ended with -11" in fuzz(root, *given, "--story", str(file)).stdout
    assert fuzz(root, "--build", "uncompiled", "--story", str(file)).returncode == 0


def test_every_option_is_drawn_and_written_as_text() -> None:
    tally = Tally()
    for seed in range(400):
        config = draw_config(Random(seed))
        assert eval(written(config), {**KNOWN}) == config
        tally.add_program(Program(config, ()))
    assert not tally.never_drawn_small()
    assert all(tally.counts[f"choice of {name}"] for name in OTHERS)


def test_a_seed_gives_the_same_story_every_time() -> None:
    names = reached("uncompiled")
    assert draw_story("x/1", names) == draw_story("x/1", reached("uncompiled"))
    assert draw_story("x/1", names) != draw_story("x/2", names)
