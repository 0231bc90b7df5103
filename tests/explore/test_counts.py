"""How large the graphs are: states and edges are counted again and compared."""

from __future__ import annotations

import pytest

from kvspec.explore.configurations import CONFIGURATIONS
from kvspec.explore.session import recorded_counts
from tests.explore.exploring import configuration, explored

FAST_EDGES = 20_000
"""What is explored in some seconds."""

RECORDED = recorded_counts()


def test_every_configuration_has_its_counts_and_every_count_its_configuration() -> None:
    assert set(RECORDED) == {each.name for each in CONFIGURATIONS}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if counts.edges < FAST_EDGES else pytest.mark.deep)
        for name, counts in RECORDED.items()
    ],
)
def test_a_configuration_has_the_states_and_edges_that_are_recorded(name: str) -> None:
    exploration = explored(configuration(name))
    assert exploration.is_complete
    assert exploration.violation is None
    assert exploration.counts == RECORDED[name]


def test_every_move_and_refusal_comes_up_somewhere() -> None:
    from kvspec.explore.play import PLAYS

    seen = {move for counts in RECORDED.values() for move, number in counts.by_move if number}
    assert seen == set(PLAYS)
    assert sum(counts.refused for counts in RECORDED.values()) > 0
