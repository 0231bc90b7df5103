"""bench/device: what is divided by what, what is claimed, and that it runs without a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from bench.device import __main__ as command
from bench.device.cases import COPY, Bench, Case
from bench.device.report import OURS, claims, lines, row_of
from bench.device.runs import MAX_STEPS, run_cases
from bench.device.timing import Call, Repeated, rounds


def row(phase: str, size: str, seconds: float, *, staged: int | None = None) -> dict[str, object]:
    case = Case(phase, size, 2 << 30, staged_bytes=staged, new_blocks=64)
    case.failed["another"] = "it can't"
    return row_of(case, {OURS: [seconds] * 3, COPY: [1e-3] * 3})


@pytest.mark.parametrize(("seconds", "share"), [(1.1e-3, "90.9 %, holds"), (1.2e-3, "83.3 %, **d")])
def test_a_share_of_a_copy_is_claimed(seconds: float, share: str) -> None:
    (line,) = claims([row("write", "262,144 tokens", seconds)])
    assert line.startswith(f"- write, 262,144 tokens: at least 85 % of a copy: {share}")


def test_a_time_and_what_is_staged_are_claimed() -> None:
    found = list(claims([row("tables and slots", "1,024 requests", 16e-6, staged=64 * 16)]))
    assert found[0].endswith("16.0 µs, **does not hold**")
    assert found[1].endswith("16.0, holds")
    assert not list(claims([row("tables and slots", "64 requests", 1, staged=1 << 30)]))


def test_a_row_has_bytes_in_a_second_and_what_failed() -> None:
    first, second, third = lines(row("gather", "some", 2e-3))
    assert first == (f"| gather | some | {OURS} | 2,000.0 (2,000.0 … 2,000.0) | 1,074 | 50 % |  |")
    assert COPY in second
    assert third == "| gather | some | another | failed: it can't | | | |"


def test_a_call_that_does_it_several_times_is_divided_by_them() -> None:
    done = []
    device = torch.device("cpu")
    many = Repeated(lambda: done.append(5), 5)
    calls: dict[str, Call] = {"one": lambda: done.append(1), "many": many}
    times = rounds(calls, device, num_rounds=2, num_calls=5)
    assert {name: len(one) for name, one in times.items()} == {"one": 2, "many": 2}
    assert (done.count(1), done.count(5)) == (15, 3)


def test_what_cannot_be_captured_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> object:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("bench.device.cases.captured", fails)
    case = Case("write", "some", 1)
    Bench(torch.device("cpu"), 8, {}).add(case, "it", print)
    assert (case.contestants, case.failed) == (
        {},
        {"it": "operation not permitted when stream is capturing"},
    )


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
