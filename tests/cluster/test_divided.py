"""Sweeps and replays that are divided: what one process writes, and what it alone can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.cli.whatif import curves_of
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select
from kvcheck.tools.replay.units import units_of
from tests.cluster.workers import Shuffling

TRACES = ("synth:chat?requests=30&seed=1", "synth:chat?requests=20&seed=2", "demo")


def asked(number: int) -> tuple[list[Any], list[list[int]]]:
    found = []
    for seed in range(number):
        with open_trace(f"synth:chat?requests=60&seed={seed}") as source:
            found.append((str(seed), units_of(select(source), None)))
    return found, [[2 * units.smallest_pool + more for more in range(3)] for _, units in found]


def test_curves_are_the_same_in_any_order_of_answers() -> None:
    wanted = asked(8)
    alone = curves_of(*wanted, None)
    assert len({each.infinite for each in alone}) > 1
    assert curves_of(*wanted, Shuffling(5, losing=0.3)) == alone


@pytest.mark.parametrize(
    "command",
    [
        ("whatif", *TRACES, "--sizes", "3"),
        ("replay", *TRACES, "--impl", "kvref", "--num-blocks", "900", "--no-check", "--limit", "9"),
        ("replay", "demo", "--impl", "kvref", "--engines", "2", "--no-check", "--limit", "9"),
    ],
)
def test_processes_write_what_one_writes(command: tuple[str, ...], tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        file = tmp_path / jobs
        assert main([*command, "--json", str(file), "--jobs", jobs]) == 0
        found.append(without_seconds(json.loads(file.read_text("utf-8"))))
    assert found[0] == found[1]


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(each) for key, each in value.items() if key != "seconds"}
    return [without_seconds(each) for each in value] if isinstance(value, list) else value
