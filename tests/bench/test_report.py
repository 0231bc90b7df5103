"""Medians, quartiles and ratios, from numbers that can be worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kvcheck.tools.bench.measure import Measured, Measurement, Subject
from kvcheck.tools.bench.report import document, machine, ratios, spread
from tests.bench.toy import SMALL, STEPS, FakeClock, Toy

FOUND = Measurement(SMALL, "look up", 2, {"b": [10.0, 2.0, 8.0], "a": [20.0, 20.0, 4.0]})


def test_a_spread_is_the_median_between_the_quartiles() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"q1": 2.0, "median": 3.0, "q3": 4.0}


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios(FOUND, "a", "b") == [2.0, 10.0, 0.5]
    assert ratios(FOUND, "a", "a") == [1.0, 1.0, 1.0]


def test_without_the_baseline_there_is_no_ratio() -> None:
    alone = Measurement(SMALL, "free", 2, {"b": [1.0, 2.0]})
    assert ratios(alone, "a", "b") is None


def test_a_clock_that_sees_nothing_breaks_nothing() -> None:
    nothing = Measurement(SMALL, "free", 2, {"a": [0.0, 1.0], "b": [0.0, 0.0]})
    assert ratios(nothing, "a", "b") == [1.0, 1000.0]


def test_the_document_has_what_is_needed_to_judge_the_numbers() -> None:
    subjects = tuple(Subject(name, Toy(FakeClock(), is_batched=False)) for name in ("a", "b"))
    decoding = Measurement(STEPS, "decode step", 48, FOUND.rounds_ns)
    measured = Measured((FOUND, decoding), {"a": "ticks", "b": "tocks"}, 5.0)
    started = datetime(2026, 1, 2, 3, tzinfo=UTC)
    made = document(subjects, measured, 3, "kvspec bench", started)
    assert made["started"] == "2026-01-02T03:00:00+00:00"
    assert (made["baseline"], made["rounds"]) == ("a", 3)
    assert [each["includes"] for each in made["implementations"]] == ["ticks", "tocks"]
    assert made["machine"].keys() == machine().keys()
    first, second = made["measurements"]
    assert (first["phase"], first["unit"], first["units_per_round"]) == ("look up", "request", 2)
    assert list(first["results"]) == ["a", "b"]
    assert first["results"]["b"] == {
        "ns_per_unit": {"q1": 5.0, "median": 8.0, "q3": 9.0},
        "ratio": {"q1": 1.25, "median": 2.0, "q3": 6.0},
        "rounds_ns_per_unit": [10.0, 2.0, 8.0],
    }
    assert (first["case"]["kind"], second["case"]["kind"]) == ("prompt", "decode")
    assert first["case"]["hit_percent"] == 50


def test_the_machine_is_described_where_the_system_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr("os.getloadavg", refuse)
    assert machine()["load_1min"] is None
    assert machine()["cores"] >= 1
    assert machine()["processor"]
