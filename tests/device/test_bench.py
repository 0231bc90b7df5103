"""bench/device: what is divided by what, when the device is faster, and runs without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from bench.device import __main__ as command
from bench.device import hashing
from bench.device.cases import Bench
from bench.device.hashing import DEVICE, HOST, MANAGER, Row, Waiting, WrongAnswerError
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


def row(num_prompts: int, num_tokens: int, *gains: float) -> Row:
    seconds = {MANAGER: list(gains), HOST: [2 * one for one in gains], DEVICE: [1.0] * len(gains)}
    return Row(num_prompts, num_tokens, seconds)


@pytest.mark.parametrize(
    ("rows", "crossover"),
    [
        ([row(1, 64, 2, 2)], 1),
        ([row(1, 64, 0.5, 0.5), row(2, 64, 0.9, 2, 2, 0.9), row(4, 64, 2, 2)], 4),
        ([row(1, 64, 0.5), row(4, 64, 2), row(1, 512, 0.5), row(4, 512, 0.5)], None),
        ([row(1, 64, 2), row(2, 64, 0.5), row(4, 64, 2), row(8, 64, 2)], 4),
        ([], None),
    ],
)
def test_from_the_crossover_on_the_device_is_faster_in_all_rows(
    rows: list[Row], crossover: int | None
) -> None:
    assert hashing.crossover_of(rows) == crossover


def test_the_command_runs_without_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hashing", "--device", "cpu", "--quick"])
    assert hashing.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("chip: none: host memory, no figures")
    assert said.count("| index, device |") == 3
    assert said.splitlines()[-1].startswith("Crossover(num_prompts=")


def test_a_wrong_answer_ends_it() -> None:
    waiting = Waiting(64, torch.device("cpu"))
    assert waiting.measured(2, 1).gain.median < 1
    waiting.contestants[DEVICE] = lambda tokens, starts: [0] * (len(starts) - 1)
    with pytest.raises(WrongAnswerError, match="2 prompts of 64 tokens"):
        waiting.measured(2, 1)
    for name in (MANAGER, HOST):
        waiting.contestants[name] = waiting.contestants[DEVICE]
    with pytest.raises(WrongAnswerError):  # nothing is cached
        waiting.measured(2, 1)
