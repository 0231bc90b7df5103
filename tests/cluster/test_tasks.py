"""Calls and their results: in order, each once, whatever is lost; dead workers are named."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.processes import Processes
from kvcheck.tasks import (
    MOST_DEATHS,
    Cluster,
    ClusterError,
    LostError,
    Outcome,
    WorkerDiedError,
    in_order,
)
from kvspec.errors import InvalidArgumentError
from tests.cluster.workers import Shuffling, on_nodes


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
