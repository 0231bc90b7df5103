"""bench/device: what is divided by what, and that it runs without a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from bench.device import __main__ as command
from bench.device.cases import Bench
from bench.device.runs import MAX_STEPS, run_cases
from bench.device.timing import Call, Repeated, rounds


def test_a_call_that_does_it_several_times_is_divided_by_them() -> None:
    done = []
    device = torch.device("cpu")
    many = Repeated(lambda: done.append(5), 5)
    calls: dict[str, Call] = {"one": lambda: done.append(1), "many": many}
    times = rounds(calls, device, num_rounds=2, num_calls=5)
    assert {name: len(one) for name, one in times.items()} == {"one": 2, "many": 2}
    assert (done.count(1), done.count(5)) == (15, 3)


def test_it_runs_on_a_host_and_says_that_these_are_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    options = ["--device", "cpu", "--quick", "--only", "tables", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench.device", *options])
    assert command.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("none: host memory, no figures, torch ")
    assert [line.count("|") for line in printed if line.startswith("| ")] == [8] * 5
    assert [one["staged_bytes"] for one in json.loads(file.read_text())["rows"]] == [40, 64]


def test_steps_of_runs_are_measured_while_they_do_something() -> None:
    bench = Bench(torch.device("cpu"), 16, {"torch": "torch"})
    cases = run_cases(bench, [3])
    case = next(cases)
    for _ in range(5):
        case.contestants["torch"]()
    assert next(cases, None) is None
    cases = run_cases(bench, [1])
    case = next(cases)
    for _ in range(MAX_STEPS):
        case.contestants["torch"]()
    with pytest.raises(RuntimeError, match="some did nothing"):
        next(cases, None)
