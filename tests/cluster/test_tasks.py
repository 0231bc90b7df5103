"""Calls that are divided among processes or nodes, and processes that end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.report import text_lines
from kvcheck.judge.suite import Suite
from kvcheck.play import watchdog
from kvcheck.play.verdicts import Level
from kvcheck.processes import Processes
from kvcheck.tasks import (
    MOST_DEATHS,
    Cluster,
    ClusterError,
    LostError,
    Outcome,
    WorkerDiedError,
    Workers,
    in_order,
)
from kvref.implementation import ReferenceImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from tests.cluster.workers import Shuffling, on_nodes
from tests.commands import python
from tests.judge.test_suite import NeverTouches


@pytest.mark.parametrize("number", [0, 1, 6, 7, 8, 500])
def test_answers_come_in_the_order_of_the_calls(number: int) -> None:
    workers = Shuffling()
    calls = ((divmod, (each, 7)) for each in range(number))
    assert list(in_order(workers, calls)) == [divmod(each, 7) for each in range(number)]
    assert workers.made == number
    assert not workers.results


def test_no_more_calls_are_under_way_than_the_window() -> None:
    workers = Shuffling()
    for done, _ in enumerate(in_order(workers, ((divmod, (each, 7)) for each in range(100)))):
        assert workers.made <= done + workers.window


def test_what_a_call_raises_ends_the_run() -> None:
    with Processes(1) as workers, pytest.raises(ZeroDivisionError):
        list(in_order(workers, [(divmod, (1, 0))]))


def refuse(number: int) -> int:
    if number % 2:
        raise InvalidArgumentError("number", number, "even")
    return number


@pytest.mark.parametrize("seed", range(5))
def test_what_is_raised_is_that_of_the_first_call_that_raises(seed: int) -> None:
    workers = Shuffling(losing=0.2, random=random.Random(seed))
    answers = in_order(workers, ((refuse, (number,)) for number in (0, 2, 5, 4, 7)))
    assert [next(answers), next(answers)] == [0, 2]
    with pytest.raises(InvalidArgumentError, match="number = 5"):
        next(answers)


def test_what_a_process_raises_arrives_whole() -> None:
    with Processes(1) as workers:
        with pytest.raises(InvalidArgumentError) as raised:
            list(in_order(workers, [(refuse, (5,))]))
        assert (raised.value.field, raised.value.value) == ("number", 5)
        assert "in refuse" in "".join(raised.value.__notes__)
        with pytest.raises(RuntimeError, match="cannot be sent"):
            list(in_order(workers, [(threading.Lock, ())]))


def test_without_ray_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main(["explore", "--config", "manager", "--cluster", "local"]) == 2
    assert "pip install 'kvspec[cluster]'" in capsys.readouterr().err


def test_an_address_of_nobody_is_said() -> None:
    pytest.importorskip("ray", reason="needs the extra cluster (ray)")
    with pytest.raises(ClusterError, match="no Ray cluster at"):
        Cluster("127.0.0.1:1")


def test_without_workers_a_call_is_made_when_its_answer_is_asked_for() -> None:
    made: list[int] = []
    answers = in_order(None, ((made.append, (number,)) for number in range(3)))
    assert made == []
    next(answers)
    assert made == [0]


@pytest.mark.parametrize("losing", [0.1, 0.6])
def test_an_answer_that_is_lost_is_made_again(losing: float) -> None:
    workers = Shuffling(losing=losing)
    calls = ((divmod, (each, 7)) for each in range(200))
    assert list(in_order(workers, calls)) == [divmod(each, 7) for each in range(200)]
    assert workers.made > 200
    assert not workers.results


@dataclass
class Killed(Shuffling):
    times: int = 0

    def answer(self, handle: int) -> Outcome:
        found = super().answer(handle)
        if found.answer == (0, 3) and self.times:
            self.times -= 1
            raise LostError(with_its_node=False)
        return found


def test_of_what_a_process_dies_again_and_again_the_run_ends() -> None:
    calls = [(divmod, (each, 7)) for each in range(20)]
    expected = [divmod(each, 7) for each in range(20)]
    assert list(in_order(Killed(times=MOST_DEATHS - 1), calls)) == expected
    with pytest.raises(WorkerDiedError, match=r"at divmod; .* cmd:kvspec serve IMPL"):
        list(in_order(Killed(times=MOST_DEATHS), calls))


def suicide(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_call_that_ends_its_process_ends_the_run_with_a_line() -> None:
    with Processes(2) as workers, pytest.raises(WorkerDiedError, match="a process ended"):
        list(in_order(workers, ((suicide, (number,)) for number in range(9))))


@on_nodes
def test_a_call_that_ends_its_process_on_a_node_is_no_lost_node(nodes: Any) -> None:
    nodes.add_node(num_cpus=2)
    with Cluster(nodes.address) as workers:
        with pytest.raises(WorkerDiedError, match="at suicide"):
            list(in_order(workers, ((suicide, (number,)) for number in range(9))))
        assert list(in_order(workers, [(suicide, (1,))])) == [1]


HANGS = """
import pathlib, time
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation


class Hangs(BlockPool):
    def touch(self, blocks):
        pathlib.Path("hangs").touch()
        while True:
            try:
                time.sleep(60)
            except Exception:
                pass


def implementation():
    return ReferenceImplementation(Hangs)
"""
COMMAND = """
import signal, sys
from kvcheck.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signal like Ctrl-C for a group there")
def test_ctrl_c_ends_processes_that_hang_and_the_report_is_shown(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    asked = ["--budget", "directed", "--level", "safety", "--rules", "KV-POOL-5", "--jobs", "2"]
    command = [sys.executable, "-c", COMMAND, "check", "hangs:implementation", *asked]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "hangs").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=watchdog.PROGRAM_SECONDS / 2)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in output
    assert not errors


ORPHAN = """
import os, signal
from kvcheck.processes import Processes
from kvcheck.tasks import in_order
if __name__ == "__main__":
    with Processes(1) as workers:
        print(*in_order(workers, [(divmod, (7, 2))]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    """Wait for the output to close: an orphan would keep it open for ever."""
    (tmp_path / "orphan.py").write_text(ORPHAN)
    done = python(str(tmp_path / "orphan.py"), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "(3, 1)\n", "")


def hanging(name: str) -> Implementation:
    return ReferenceImplementation(NeverTouches)


@pytest.mark.skipif(sys.platform == "win32", reason="no timer of the system there")
@pytest.mark.parametrize("window", [1, 4])
def test_patience_ends_at_the_same_program(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop later results, which would not have been requested."""
    monkeypatch.setattr(watchdog, "PROGRAM_SECONDS", 0.1)
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", 0.15)
    monkeypatch.setattr("kvcheck.judge.parts.SLOW_SECONDS", 0.05)

    def report(workers: Workers | None) -> list[str]:
        options = Options(Level.SAFETY, dict(BUDGETS)["directed"], ("KV-POOL-5", "KV-POOL-6"))
        suite = Suite(hanging(""), None, options, find=hanging)
        suite.workers = workers
        return list(text_lines(replace(suite.run(), seconds=0.0)))

    alone = report(None)
    assert "stopped early" in "\n".join(alone)
    assert report(Shuffling(window)) == alone
