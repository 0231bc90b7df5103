"""examples/tiny_engine: tokens and logits are those of recomputing, whatever the schedule."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import kvref
from examples.tiny_engine.engine import Engine
from kvfast.device import DeviceStep, HostTier, Ids, RunDifferenceError, Transfer
from kvspec.batched import Array, StepPlan, StepResult
from kvspec.errors import KVSpecError
from kvspec.request import Request
from tests.examples.generating import Schedule, WrongError
from tests.mistakes import mistaken
from tests.source import ROOT

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
    """A schedule in which the device decodes up to six steps at a time."""
    return Schedule(seed, num_resident_steps=1 + seed % 6, **options)


def test_the_device_decodes_the_same_alone() -> None:
    total: Counter[str] = Counter()
    for seed in range(12):
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


def hands_over_backwards(engine: Engine) -> None:
    """The blocks that are taken last are promised to the device."""
    ahead = engine.batched.next_free_blocks
    engine.batched.next_free_blocks = lambda num_blocks: array("i", ahead(num_blocks)[::-1])  # type: ignore[method-assign] # broken on purpose


def forgets_the_slots(engine: Engine) -> None:
    """Keys and values are written where those of the step before were, if it was as large."""
    assert engine.resident is not None
    loan = engine.resident._handover
    outputs, before = loan.outputs, list[Any]([()])

    def broken(num_requests: int, longest: int) -> DeviceStep:
        step = outputs(num_requests, longest)
        before.append(tuple(one.clone() for one in step.slots if one is not None))
        sizes = [[len(one) for one in slots] for slots in before[-2:]]
        return replace(step, slots=before[-2] if sizes[0] == sizes[1] else before[-1])

    loan.outputs = broken  # type: ignore[method-assign] # broken on purpose


@pytest.mark.parametrize("mistake", [hands_over_backwards, forgets_the_slots])
def test_a_run_with_one_mistake_fails(mistake: Callable[[Engine], None]) -> None:
    def run_all() -> None:
        for seed in range(12):
            decoded_alone(seed).run(kvref.implementation(), mistake)

    with pytest.raises((WrongError, RunDifferenceError)):
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
    """Whether some schedule shows the mistake: a wrong answer, or an error on the way."""
    for seed in seeds:
        schedule = Schedule(seed)
        # An audit of the manager would tell before the tokens do.
        schedule.config = replace(schedule.config, check_invariants=False)
        try:
            schedule.run(**options)  # type: ignore[arg-type] # of Schedule.run
        except (WrongError, KVSpecError):
            return True
    return False


@pytest.mark.parametrize(
    "pool",
    [
        "GivesABlockTwice",
        "TouchLeavesTheBlockFree",
        "KeepsKeysOfTakenBlocks",
        "FreesWhatOthersStillHold",
        "LeaksUnhashedBlocks",
        "SharedHitsAreNotCounted",
    ],
)
def test_with_a_broken_manager_it_fails(pool: str) -> None:
    assert found(range(NUM_SCHEDULES), implementation=mistaken(pool, audits=True))


def forgets_to_rewind(engine: Engine) -> None:
    engine.paged.tables.rewind = lambda handles, num_tokens: None  # type: ignore[method-assign] # broken on purpose


def loses_the_last_row(engine: Engine) -> None:
    tables, step = engine.paged.tables, engine.paged.tables.step

    def broken(plan: StepPlan, result: StepResult, deltas: Array | None = None) -> DeviceStep:
        fewer = replace(result, num_deltas=max(0, result.num_deltas - 1))
        return step(plan, fewer, deltas)

    tables.step = broken  # type: ignore[method-assign] # broken on purpose


def host_of(engine: Engine) -> HostTier:
    if engine.host is None:
        engine.host = HostTier(
            kvref.implementation(), engine.batched, engine.paged.pools, num_host_blocks=20
        )
    return engine.host


def copies_nothing_out(engine: Engine) -> None:
    host_of(engine).swapper.swap_out = lambda blocks, host_blocks: Transfer(None)  # type: ignore[method-assign] # broken on purpose


def loads_in_reverse(engine: Engine) -> None:
    swapper, swap_in = host_of(engine).swapper, host_of(engine).swapper.swap_in
    swapper.swap_in = lambda host_blocks, blocks: swap_in(list(host_blocks)[::-1], blocks)  # type: ignore[method-assign] # broken on purpose


def copies_out_a_step_late(engine: Engine) -> None:
    host = host_of(engine)
    swapper, swap_out, late = host.swapper, host.swapper.swap_out, list[tuple[Ids, Ids]]()

    def broken(blocks: Ids, host_blocks: Ids) -> Transfer:
        late.append((blocks, host_blocks))
        if len(late) > 1:
            swap_out(*late.pop(0))
        return Transfer(None)

    swapper.swap_out = broken  # type: ignore[method-assign] # broken on purpose


def keeps_what_is_half_full(engine: Engine) -> None:
    tier = host_of(engine).tier
    computed = tier.computed

    def broken(request: Request, group: int, first: int, blocks: Sequence[int]) -> None:
        # One entry early: the block before is taken for this one.
        computed(request, group, max(0, first - 1), blocks)

    tier.computed = broken  # type: ignore[method-assign] # broken on purpose


@pytest.mark.parametrize(
    "mistake",
    [
        forgets_to_rewind,
        loses_the_last_row,
        copies_nothing_out,
        loads_in_reverse,
        copies_out_a_step_late,
        keeps_what_is_half_full,
    ],
)
def test_an_engine_with_one_mistake_fails(mistake: Callable[[Engine], None]) -> None:
    assert found(range(NUM_SCHEDULES), prepare=mistake)


def test_the_demo_serves_all_chats(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "examples.tiny_engine.demo"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3/3") == 6
    assert "hit rate" in done.stdout
    picture = tmp_path / "demo.svg"
    subprocess.run([*arguments, "--svg", str(picture)], cwd=ROOT, check=True)
    assert "answers" in picture.read_text(encoding="utf-8")
