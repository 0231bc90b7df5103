"""`kvspec explore`: its output, several processes, recorded counts, interrupted runs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvref
from kvcheck.cli.explore import exit_code
from kvcheck.discovery import find_implementation
from kvcheck.explore.configurations import configurations
from kvcheck.explore.search import Exploration, Pair
from kvcheck.explore.session import Report, Result, recorded_counts, run
from kvcheck.processes import Processes
from kvspec.interface import Feature
from tests.commands import LEAKS, kvspec
from tests.explore.managers import configuration, explored
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


def explore(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return kvspec(folder, "explore", *args)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_broken_rule_is_told_in_words_in_json_and_as_a_record(tmp_path: Path, jobs: str) -> None:
    chosen = ("--impl", LEAKS, "--config", "pool", "--jobs", jobs)
    done = explore(tmp_path, *chosen, "--records", "records", "--json", "-")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    (violation,) = document["violations"]
    assert violation["rule"] == "KV-POOL-15"
    assert violation["num_moves"] == 2
    assert violation["operations"][-1]["op"] == "free"
    assert "leaked" in done.stderr
    (record,) = (tmp_path / "records").iterdir()
    assert f"kvspec golden records/{record.name} --impl {LEAKS}" in done.stderr
    for name, code in ((LEAKS, 1), ("kvref", 0)):
        again = kvspec(tmp_path, "golden", f"records/{record.name}", "--impl", name)
        assert again.returncode == code, again.stdout


def test_a_run_stops_after_some_edges_or_counts_what_is_recorded(tmp_path: Path) -> None:
    first = explore(tmp_path, "--config", "ring", "--max-edges", "400")
    assert first.returncode == 0, first.stderr
    assert "incomplete" in first.stdout
    second = explore(tmp_path, "--config", "ring", "--json", "out.json")
    assert second.returncode == 0, second.stderr
    assert "no rule broken" in second.stdout
    assert "as recorded" not in second.stdout
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert result["as_recorded"] is True
    assert result["edges"] == recorded_counts()["ring"].edges


def test_names_of_blocks_can_be_told_apart(tmp_path: Path) -> None:
    chosen = ("--config", "retention", "--max-edges", "1200", "--json", "-")
    renamed, whole = (
        json.loads(explore(tmp_path, *chosen, *more).stdout)["results"][0]
        for more in ((), ("--whole",))
    )
    assert (renamed["up_to_names"], whole["up_to_names"]) == (True, False)
    assert renamed["depth"] > whole["depth"]


def test_the_list_names_every_configuration(tmp_path: Path) -> None:
    done = explore(tmp_path, "--list")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        each.name for each in configurations()
    ]


FAST_EDGES, DEEP_EDGES = 3_000, 200_000
"""Counts of explorations of a second, and of half a minute; `.ci/run` has more of the first."""

RECORDED = recorded_counts()


def test_every_configuration_of_the_default_run_has_counts_and_all_counts_have_one() -> None:
    usual = {each.name for each in configurations() if not each.is_deep}
    assert usual <= set(RECORDED) <= {each.name for each in configurations()}


def test_the_default_run_has_more_than_a_million_edges() -> None:
    usual = (RECORDED[each.name].edges for each in configurations() if not each.is_deep)
    assert sum(usual) > 1_000_000


def test_other_counts_than_recorded_end_the_command_with_code_1() -> None:
    what = configuration("retention")
    for counts, code in ((RECORDED["retention"], 0), (replace(RECORDED["retention"], edges=1), 1)):
        report = Report([Result(what, counts, 1.0, is_complete=True)])
        assert exit_code(report) == code


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if counts.edges < FAST_EDGES else pytest.mark.deep)
        for name, counts in RECORDED.items()
        if counts.edges < DEEP_EDGES
    ],
)
def test_a_configuration_has_the_states_and_edges_that_are_recorded(name: str) -> None:
    exploration = explored(configuration(name))
    assert exploration.is_complete
    assert exploration.violation is None
    assert exploration.counts == RECORDED[name]


def test_every_move_and_refusal_comes_up_somewhere() -> None:
    from kvcheck.explore.play import PLAYS

    seen = {move for counts in RECORDED.values() for move, number in counts.by_move if number}
    assert seen == set(PLAYS)
    assert sum(counts.refused for counts in RECORDED.values()) > 0
