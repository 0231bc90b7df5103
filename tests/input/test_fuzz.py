"""A fuzzer for each reader: short here and the same each time, longer with --deep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import every_second
from tests.input.fuzz import HOLES
from tests.input.readers import READERS

ROOT = Path(__file__).parents[2]


def run(reader: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.input.fuzz", reader, *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("reader", READERS)
def test_damaged_input_is_read_or_refused(reader: str, request: pytest.FixtureRequest) -> None:
    number = 20_000 if request.config.getoption("--deep") else 150
    done = run(reader, "--inputs", str(number))
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]


@pytest.mark.parametrize("hole", every_second(HOLES))
def test_a_planted_hole_is_found(hole: str) -> None:
    done = run(HOLES[hole][0], "--inputs", "150", "--hole", hole)
    assert done.returncode != 0, "not found"
    assert ": error:" not in done.stderr, "the fuzzer itself was called wrongly"
