"""How large the graphs are: states and edges are counted again and compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcheck.cli.explore import exit_code
from kvcheck.explore.configurations import configurations
from kvcheck.explore.session import Report, Result, recorded_counts
from tests.explore.exploring import configuration, explored

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
