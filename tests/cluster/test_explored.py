"""An exploration by Ray: the same bytes with 1 node and with 4, and when one of them dies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcheck.cli.explore import pair_of
from kvcheck.explore.configurations import CONFIGURATIONS
from kvcheck.explore.search import Exploration
from kvcheck.explore.session import Session
from kvcheck.tasks import Cluster, Workers
from tests.cluster.workers import Counting, kill_one_at_work, on_nodes


def explored(workers: Workers | None, heard: Any = lambda now: None) -> str:
    chosen = [each for each in CONFIGURATIONS if each.name == "manager"]
    session = Session(pair_of("kvfast", "kvref"), chosen, workers, 30_000, heard)
    report = session.run()
    results = [{**result.to_json(), "seconds": 0} for result in report.results]
    return json.dumps({**session.about, "results": results, "broken": len(report.violations)})


@on_nodes
@pytest.mark.parametrize("number", [1, 4])
def test_results_do_not_depend_on_the_number_of_nodes(nodes: Any, number: int) -> None:
    for _ in range(number):
        nodes.add_node(num_cpus=1)
    with Cluster(nodes.address) as workers:
        assert explored(workers) == explored(None)


@on_nodes
def test_when_a_node_dies_nothing_is_lost_and_nothing_counts_twice(nodes: Any) -> None:
    working = [nodes.add_node(num_cpus=1) for _ in range(3)]
    told = []

    def heard(now: Exploration) -> None:
        told.append(now.counts.edges)
        if len(told) == 5:  # in the middle, with calls under way on it
            kill_one_at_work(nodes, working)

    with Counting(nodes.address) as workers:
        found = explored(workers, heard)
    assert len(told) > 5
    assert any(workers.lost)  # and was made again
    assert found == explored(None)
