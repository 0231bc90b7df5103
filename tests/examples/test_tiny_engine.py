"""examples/tiny_engine: tokens and logits are those of recomputing, whatever the schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import kvref
from kvcheck.mistakes import find
from kvfast.device import RunDifferenceError
from kvspec.errors import KVSpecError
from tests.commands import python
from tests.device.mistakes import TEXTS
from tests.examples.generating import Schedule, WrongError
from tests.mistakes import mistaken

NUM_SCHEDULES = 24
NUM_DEEP_SCHEDULES = 4000


def test_every_token_and_logit_is_that_of_recomputing() -> None:
    total: Counter[str] = Counter()
    for seed in range(NUM_SCHEDULES):
        schedule = Schedule(seed)
        schedule.run()
        total += schedule.counts
    for what in (
        "hit tokens",
        "preemptions",
        "drafts accepted",
        "drafts rejected",
        "prompts in chunks",
        "tokens loaded",
        "blocks copied out",
    ):
        assert total[what] > 10, what


@pytest.mark.deep
def test_every_token_and_logit_is_that_of_recomputing_in_thousands_of_schedules() -> None:
    for seed in range(NUM_SCHEDULES, NUM_DEEP_SCHEDULES):
        Schedule(seed).run()


def decoded_alone(seed: int, **options: Any) -> Schedule:
    """Return a schedule in which the device decodes up to six steps at a time."""
    return Schedule(seed, num_resident_steps=1 + seed % 6, **options)


def test_the_device_decodes_the_same_alone() -> None:
    total: Counter[str] = Counter()
    for seed in range(8):
        schedule = decoded_alone(seed)
        schedule.run(kvref.implementation() if seed % 3 == 0 else None)
        total += schedule.counts
    for what in ("hit tokens", "prompts in chunks", "resident steps"):
        assert total[what] > 10, what
    assert total["resident steps"] > 200


@pytest.mark.deep
def test_the_device_decodes_the_same_alone_in_many_schedules() -> None:
    for seed in range(12, 1000):
        decoded_alone(seed).run()


def test_kernels_decode_the_same_alone() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    schedule = decoded_alone(5, backend="triton")
    schedule.requests = [(name, prompt[:6], 3) for name, prompt, _ in schedule.requests[:3]]
    schedule.run()
    assert schedule.counts["resident steps"] > 0


def planted(name: str) -> AbstractContextManager[None]:
    made: AbstractContextManager[None] = find(name, chain(*TEXTS.values())).make()
    return made


@pytest.mark.parametrize("name", ["HandsOverBackwards", "SlotsOfTheStepBefore"])
def test_a_run_with_one_mistake_fails(name: str) -> None:
    def run_all() -> None:
        for seed in range(12):
            decoded_alone(seed).run(kvref.implementation())

    with planted(name), pytest.raises((WrongError, RunDifferenceError)):
        run_all()


def test_the_reference_serves_the_same_engine() -> None:
    for seed in range(2):
        Schedule(seed).run(kvref.implementation())


def test_the_kernels_serve_the_same_engine() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    schedule = Schedule(1, backend="triton")
    schedule.requests = [(name, prompt[:6], 2) for name, prompt, _ in schedule.requests[:3]]
    schedule.run()


def found(seeds: Iterable[int], **options: object) -> bool:
    for seed in seeds:
        schedule = Schedule(seed)
        # An audit of the manager would find it before the tokens do.
        schedule.config = replace(schedule.config, check_invariants=False)
        try:
            schedule.run(**options)  # type: ignore[arg-type] # of Schedule.run
        except (WrongError, KVSpecError):
            return True
    return False


@pytest.mark.parametrize("pool", ["GivesABlockTwice", "KeepsKeysOfTakenBlocks"])
def test_with_a_broken_manager_it_fails(pool: str) -> None:
    assert found(range(NUM_SCHEDULES), implementation=mistaken(pool, audits=True))


@pytest.mark.parametrize("name", ["MissesADelta", "CopiesAfterTheStep"])
def test_an_engine_with_one_mistake_fails(name: str) -> None:
    with planted(name):
        assert found(range(NUM_SCHEDULES))


def test_the_demo_serves_all_chats(tmp_path: Path) -> None:
    done = python("-m", "examples.tiny_engine.demo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3/3") == 6
    assert "hit rate" in done.stdout
    picture = tmp_path / "demo.svg"
    python("-m", "examples.tiny_engine.demo", "--svg", str(picture), check=True)
    assert "answers" in picture.read_text(encoding="utf-8")
