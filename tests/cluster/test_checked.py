"""Checks, curves and replays that are divided: equal results in any order of answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.cli.whatif import curves_of
from kvcheck.discovery import find_implementation
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.outcome import Reached
from kvcheck.judge.report import text_lines, to_json
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.processes import Processes
from kvcheck.tasks import Workers
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select
from kvcheck.tools.replay.units import units_of
from tests.cluster.workers import Counting, Shuffling, kill_one_at_work, on_nodes

DEEP = dict(BUDGETS)["deep"]


def checked(
    name: str,
    workers: Workers | None,
    heard: Callable[[Reached], None] = lambda reached: None,
    *,
    programs: int = 40,
    rules: tuple[str, ...] = ("KV-COORD-6", "KV-COORD-4", "KV-COORD-7"),
) -> str:
    options = Options(Level.IDENTITY, DEEP.counted(programs), rules, name=name)
    sides = (find_implementation(name), find_implementation("kvref"))
    suite = Suite(*sides, options, heard, find_implementation)
    suite.workers = workers
    report = replace(suite.run(), seconds=0.0)
    return "\n".join([*text_lines(report), json.dumps(to_json(report))])


BROKEN = "mistake:FullDropsEveryRound"
"""Found by examples and by random programs."""


def less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.judge.faults.MOST_MISTAKES", 3)


@pytest.fixture(autouse=True)
def less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    less(monkeypatch)


@pytest.fixture(scope="module")
def alone() -> str:
    with pytest.MonkeyPatch.context() as monkeypatch:
        less(monkeypatch)
        return checked(BROKEN, None)


@pytest.mark.deep
@pytest.mark.parametrize("window", [1, 9])
def test_the_report_is_the_same_in_any_order_of_answers(window: int, alone: str) -> None:
    """Vary the window: a report that depended on more than the programs would change."""
    assert "does not conform" in alone
    report = json.loads(alone.splitlines()[-1])
    assert 0 < report["random"] <= 40
    assert checked(BROKEN, Shuffling(window, losing=0.2)) == alone


def test_processes_find_the_same(alone: str) -> None:
    with Processes(2) as workers:
        assert checked(BROKEN, workers) == alone


@pytest.mark.parametrize("number", [0, 3, 105])
def test_programs_are_counted_over_the_batches(number: int) -> None:
    report = checked("kvref", None, programs=number, rules=("KV-HASH-1",))
    assert number * 0.8 <= json.loads(report.splitlines()[-1])["random"] <= number


CRASHES = """
import os
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation


class Crashes(BlockPool):
    def touch(self, blocks):
        os.kill(os.getpid(), 9)


def implementation():
    return ReferenceImplementation(Crashes)
"""


def test_a_program_that_crashes_is_a_finding_and_no_lost_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crashes.py").write_text(CRASHES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    name = f"cmd:{sys.executable} -m kvcheck.cli serve crashes:implementation"
    arguments = ["--budget", "directed", "--programs", "0", "--rules", "KV-POOL-5"]
    said = []
    for jobs in ("1", "2"):
        assert main(["check", name, *arguments, "--jobs", jobs]) == 1
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "was killed by SIGKILL" in said[0]
    assert main(["check", "crashes:implementation", *arguments, "--jobs", "2"]) == 2
    assert "cmd:kvspec serve IMPL" in capsys.readouterr().err


@on_nodes
def test_when_a_node_dies_no_program_is_lost_and_none_counts_twice(nodes: Any, alone: str) -> None:
    working = [nodes.add_node(num_cpus=1) for _ in range(3)]
    told: list[str] = []

    def heard(reached: Reached) -> None:
        told.append(reached.phase)
        if len(told) == 20:  # in the middle, with calls under way on it
            kill_one_at_work(nodes, working)

    with Counting(nodes.address) as workers:
        found = checked(BROKEN, workers, heard)
    assert len(told) > 20
    assert any(workers.lost)  # and was made again
    assert found == alone


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
