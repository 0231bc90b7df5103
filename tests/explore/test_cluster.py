"""An exploration by Ray: the same bytes with 1 node and with 4, and when one of them dies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.cli.explore import pair_of
from kvcheck.explore.configurations import CONFIGURATIONS
from kvcheck.explore.search import Exploration
from kvcheck.explore.session import Session
from kvcheck.tasks import Call, Cluster, ClusterError, Processes, Workers, in_order


@dataclass
class Shuffling:
    """Workers that answer in any order, one or more at a time."""

    window: int = 7
    made: int = 0
    results: dict[int, Any] = field(default_factory=dict)

    def submit(self, call: Call) -> int:
        self.made += 1
        self.results[self.made] = call[0](*call[1])
        return self.made

    def any_done(self, handles: Any) -> list[int]:
        return random.sample(list(handles), random.randint(1, len(handles)))

    def answer(self, handle: int) -> Any:
        return self.results.pop(handle)


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


def test_without_ray_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main(["explore", "--config", NAME, "--cluster", "local"]) == 2
    assert "pip install 'kvspec[cluster]'" in capsys.readouterr().err


NAME = "manager"
MAX_EDGES = 30_000


def explored(workers: Workers | None, heard: Any = lambda now: None) -> str:
    """The report of a part of one configuration, as text, without the seconds."""
    chosen = [each for each in CONFIGURATIONS if each.name == NAME]
    session = Session(pair_of("kvfast", "kvref"), chosen, workers, MAX_EDGES, heard)
    report = session.run()
    results = [{**result.to_json(), "seconds": 0} for result in report.results]
    return json.dumps({**session.about, "results": results, "broken": len(report.violations)})


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A Ray cluster on this machine with a head that does no work; nodes are added by tests."""
    utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra cluster (ray)")
    found = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield found
    found.shutdown()


@pytest.mark.cluster
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")  # Ray's own: unclosed files, deprecated calls
@pytest.mark.parametrize("number", [1, 4])
def test_results_do_not_depend_on_the_number_of_nodes(nodes: Any, number: int) -> None:
    for _ in range(number):
        nodes.add_node(num_cpus=1)
    with Cluster(nodes.address) as workers:
        assert explored(workers) == explored(None)


@pytest.mark.cluster
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")  # the same
def test_when_a_node_dies_nothing_is_lost_and_nothing_counts_twice(nodes: Any) -> None:
    working = [nodes.add_node(num_cpus=1) for _ in range(3)]
    told = []

    def heard(now: Exploration) -> None:
        told.append(now.counts.edges)
        if len(told) == 5:  # in the middle, with calls under way on it
            nodes.remove_node(working[0], allow_graceful=False)

    with Cluster(nodes.address) as workers:
        found = explored(workers, heard)
        alive = [node for node in workers._ray.nodes() if node["Alive"]]
    assert len(told) > 5
    assert len(alive) == 3  # the head and two
    assert found == explored(None)


def test_an_address_of_nobody_is_said() -> None:
    pytest.importorskip("ray", reason="needs the extra cluster (ray)")
    with pytest.raises(ClusterError, match="no Ray cluster at"):
        Cluster("127.0.0.1:1")
