"""bench/device/hashing.py: when the device is faster, that results are compared, that it runs."""

from __future__ import annotations

import sys

import pytest
import torch

from bench.device import hashing
from bench.device.hashing import DEVICE, HOST, MANAGER, Row, Waiting, WrongAnswerError


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
