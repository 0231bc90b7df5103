"""Runs: in one process or several, cut short, interrupted, resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.saved import Saved
from kvcheck.explore.search import Exploration, Pair
from kvcheck.explore.session import Report, Session
from kvcheck.processes import Processes
from kvspec._json import Where
from kvspec.errors import FormatError, KVSpecError
from kvspec.interface import Feature
from tests.explore.exploring import configuration, explored

SMALL = replace(configuration("pool"), name="small", prompts=((0, 1),))
REFERENCE = Pair(kvref.implementation(), oracle_name="kvref", find=find_implementation)


def counted(report: Report) -> list[Any]:
    """Return the counts of a report, without its times."""
    return [(result.configuration.name, result.counts) for result in report.results]


def test_several_processes_count_what_one_counts() -> None:
    one = Session(REFERENCE, (SMALL,)).run()
    with Processes(2) as workers:
        assert counted(Session(REFERENCE, (SMALL,), workers).run()) == counted(one)


def test_side_by_side_the_graph_is_the_same_and_needs_no_restore_of_the_subject() -> None:
    class CannotRestore(type(kvref.implementation())):  # type: ignore[misc]  # a class of a value
        """The reference, which says that it cannot be restored, and cannot be cloned either."""

        @property
        def capabilities(self) -> Any:
            has = super().capabilities
            return replace(has, features=has.features - {Feature.CLONE, Feature.RESTORE})

        def restore(self, config: Any, snapshot: Any) -> Any:
            raise AssertionError("not asked for")

        clone = restore

    alone, beside = explored(SMALL), explored(SMALL, CannotRestore())
    assert beside.violation is None
    assert beside.counts == alone.counts
    assert beside.graph.numbers == alone.graph.numbers


def test_a_number_of_edges_ends_a_configuration_and_says_so() -> None:
    (result,) = Session(REFERENCE, (SMALL,), max_edges=500).run().results
    assert not result.is_complete
    assert 500 <= result.counts.edges < explored(SMALL).counts.edges
    assert result.as_recorded is None


@pytest.mark.parametrize("when", [1, 5])
def test_an_interrupted_run_goes_on_to_the_same_counts(when: int) -> None:
    written: list[dict[str, Any]] = []
    others: tuple[Configuration, ...] = (replace(SMALL, name="first", prompts=((0,),)), SMALL)
    whole = counted(Session(REFERENCE, others).run())
    calls = 0

    def interrupt(exploration: Exploration) -> None:
        nonlocal calls
        calls += exploration.configuration.name == "small"
        if calls > when:
            raise KeyboardInterrupt

    session = Session(REFERENCE, others, heard=interrupt)
    session.save = lambda saved: written.append(saved.to_json())
    report = session.run()
    assert report.interrupted
    saved = Saved.from_json(json.loads(json.dumps(written[-1])), Where("state"))
    assert list(saved.done) == ["first"]
    assert saved.unfinished is not None
    again = Session(REFERENCE, others).run(saved)
    assert counted(again) == whole
    assert not again.interrupted


def test_seconds_add_up_and_a_result_is_told_to_machines() -> None:
    """Resume a configuration that was cut short and is not recorded."""
    before = Saved.from_json(state(), Where("state"))
    assert before.unfinished is not None
    unfinished = replace(before.unfinished, seconds=1_000.0)
    (result,) = Session(REFERENCE, (SMALL,)).run(replace(before, unfinished=unfinished)).results
    assert 1_000 < result.seconds < 2_000
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


def test_a_state_of_another_run_is_refused() -> None:
    session = Session(REFERENCE, (SMALL,))
    with pytest.raises(KVSpecError, match="another run"):
        session.run(Saved({"impl": "other"}))


def state() -> dict[str, Any]:
    """Return a saved state from the middle of a configuration."""
    written: list[dict[str, Any]] = []
    session = Session(REFERENCE, (SMALL,), max_edges=300)
    session.save = lambda saved: written.append(saved.to_json())
    session.run()
    return written[-1]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("version", 1),
        ("format", "another"),
        ("run", 3),
        ("done", {"a": {}}),
        ("unfinished", {}),
        ("unfinished.states", "AA=="),
        ("unfinished.states", "not base64"),
        ("unfinished.first", 10**6),
        ("unfinished.moves", []),
        ("unfinished.counts", {"states": 1}),
    ],
)
def test_a_state_that_was_changed_by_hand_is_refused(member: str, value: object) -> None:
    written = state()
    Saved.from_json(written, Where("state"))
    place, (*way, last) = written, member.split(".")
    for name in way:
        place = place[name]
    place[last] = value
    with pytest.raises(FormatError):
        Saved.from_json(written, Where("state"))


def test_what_a_subject_lacks_leaves_configurations_out() -> None:
    class Plain(type(kvref.implementation())):  # type: ignore[misc]  # a class of a value
        """No drafts, no windows."""

        @property
        def capabilities(self) -> Any:
            has = super().capabilities
            return replace(has, features=has.features - {Feature.DRAFTING, Feature.MULTIPLE_GROUPS})

    pair = Pair(kvref.implementation(), Plain(), "kvref", "plain")
    chosen = tuple(configuration(name) for name in ("eagle", "hybrid", "pool"))
    report = Session(pair, (*chosen[:2], replace(SMALL, prompts=((0,),)))).run()
    assert report.left_out == {"eagle": ("drafting",), "hybrid": ("multiple_groups",)}
    assert [result.configuration.name for result in report.results] == ["small"]
