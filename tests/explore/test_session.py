"""Runs: in one process or several, cut short, interrupted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.explore.search import Exploration, Pair
from kvcheck.explore.session import Report, run
from kvcheck.processes import Processes
from kvspec.interface import Feature
from tests.explore.exploring import configuration, explored
from tests.stand_ins import Lacks

SMALL = replace(configuration("pool"), name="small", prompts=((0, 1),))
REFERENCE = Pair(kvref.implementation(), oracle_name="kvref", find=find_implementation)


def counted(report: Report) -> list[Any]:
    return [(result.configuration.name, result.counts) for result in report.results]


def test_several_processes_count_what_one_counts() -> None:
    one = run(REFERENCE, (SMALL,))
    with Processes(2) as workers:
        assert counted(run(REFERENCE, (SMALL,), workers=workers)) == counted(one)


def test_side_by_side_the_graph_is_the_same_and_needs_no_restore_of_the_subject() -> None:
    class CannotRestore(Lacks):
        """Neither that nor a clone is asked for."""

        def restore(self, *args: Any) -> Any:
            raise AssertionError("not asked for")

        def clone(self, *args: Any) -> Any:
            raise AssertionError("not asked for")

    alone, beside = explored(SMALL), explored(SMALL, CannotRestore(Feature.CLONE, Feature.RESTORE))
    assert beside.violation is None
    assert beside.counts == alone.counts
    assert beside.graph.numbers == alone.graph.numbers


def test_a_number_of_edges_ends_a_configuration_and_says_so() -> None:
    (result,) = run(REFERENCE, (SMALL,), max_edges=500).results
    assert not result.is_complete
    assert 500 <= result.counts.edges < explored(SMALL).counts.edges
    assert result.as_recorded is None


def test_an_interrupted_run_reports_what_was_explored() -> None:
    others = (replace(SMALL, name="first", prompts=((0,),)), SMALL, replace(SMALL, name="third"))

    def interrupt(exploration: Exploration) -> None:
        if exploration.configuration.name == "small":
            raise KeyboardInterrupt

    report = run(REFERENCE, others, heard=interrupt)
    assert report.interrupted
    complete = {each.configuration.name: each.is_complete for each in report.results}
    assert complete == {"first": True, "small": False}


def test_a_result_is_told_to_machines() -> None:
    (result,) = run(REFERENCE, (SMALL,)).results
    counts = result.counts
    assert replace(result, seconds=1.23456).to_json() == {
        "name": "small",
        "up_to_names": True,
        "states": counts.states,
        "edges": counts.edges,
        "refused": counts.refused,
        "errors": counts.errors,
        "depth": counts.depth,
        "by_move": dict(counts.by_move),
        "complete": True,
        "as_recorded": None,
        "seconds": 1.235,
    }


def test_what_a_subject_lacks_leaves_configurations_out() -> None:
    plain = Lacks(Feature.DRAFTING, Feature.MULTIPLE_GROUPS)
    pair = Pair(kvref.implementation(), plain, "kvref", "plain")
    chosen = tuple(configuration(name) for name in ("eagle", "hybrid", "pool"))
    report = run(pair, (*chosen[:2], replace(SMALL, prompts=((0,),))))
    assert report.left_out == {"eagle": ("drafting",), "hybrid": ("multiple_groups",)}
    assert [result.configuration.name for result in report.results] == ["small"]
