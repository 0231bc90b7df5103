"""The kernel of a resident step leaves every array as plain torch does, bit for bit."""

from __future__ import annotations

from dataclasses import fields
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast.device.resident import plain as _resident_torch
from kvfast.device.resident.state import MAX_STEPS, RunState, new_run
from kvfast.device.tables.geometry import Geometry, GroupTable
from kvfast.device.tables.state import DeviceState, new_state
from tests.device.tables import kernel_device

pytest.importorskip("triton", reason="Triton is not installed")

LONGEST = 30


def random_state(
    random: Random, max_requests: int, max_tokens: int, *, suffices: bool = False
) -> tuple[Geometry, DeviceState, RunState]:
    """Requests of any length in 0 … 3 groups, and a reserve that suffices or not."""
    spans = [random.choice((1, 2, 5, 16)) for _ in range(random.randint(int(suffices), 3))]
    groups = [GroupTable(-(-LONGEST // span), span, True, False) for span in spans]
    groups.insert(random.randint(0, len(groups)), GroupTable(3, 4, False, False))
    geometry = Geometry(tuple(groups), max_requests)
    device = torch.device(kernel_device("triton"))
    state = new_state(geometry, max_tokens, 8, device)
    max_blocks = 6 * max_requests if suffices else random.choice((1, 4, 3 * max_requests))
    run = new_run(max_requests, len(spans), max_blocks, device)
    num = min(max_requests, max_tokens)
    num = num if suffices else random.randint(0, num)
    lengths = [random.randint(0, LONGEST - 1) for _ in range(max_requests)]
    state.num_computed.copy_(torch.tensor(lengths))
    handles = random.sample(range(max_requests), num)
    run.handles[:num] = torch.tensor(handles)
    most = [random.randint(0, min(4, LONGEST - lengths[handle])) for handle in handles]
    run.left[:num] = torch.tensor(most)
    for g, span in enumerate(spans):
        held = [-(-lengths[handle] // span) + random.choice((0, 0, 1)) for handle in handles]
        run.lengths[g, :num] = torch.tensor(held)
    reserved = max_blocks if suffices else random.randint(0, max_blocks)
    run.reserve[:reserved] = torch.tensor(random.sample(range(1, 10**6), reserved))
    run.control[: MAX_STEPS + 1] = torch.tensor(
        [num, reserved, 2 if suffices else random.choice((0, 2, 5))]
    )
    return geometry, state, run


def assert_equal(left: object, right: object, kind: type) -> None:
    """Every array, also where nobody looks."""
    for field in fields(kind):
        ours, theirs = (getattr(one, field.name).cpu() for one in (left, right))
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs), field.name


def check_steps(
    seed: int, max_requests: int, max_tokens: int, num_steps: int = 4, **options: bool
) -> int:
    """Play both; the blocks that were taken."""
    from kvfast.device.resident import kernels as _resident_triton

    geometry, state, run = random_state(Random(seed), max_requests, max_tokens, **options)
    _, state_too, run_too = random_state(Random(seed), max_requests, max_tokens, **options)
    for _ in range(num_steps):
        _resident_torch.decide(state, run, geometry)
        _resident_triton.decide(state_too, run_too, geometry)
        assert_equal(state, state_too, DeviceState)
        run.log[-1] = run_too.log[-1] = 0  # an entry that is never read
        assert_equal(run, run_too, RunState)
    return int(run.control[3])


@pytest.mark.rule("KV-DEV-15", "KV-DEV-16")
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), sizes=st.tuples(st.integers(1, 9), st.integers(1, 12)))
def test_the_kernel_is_the_plain_form(seed: int, sizes: tuple[int, int]) -> None:
    check_steps(seed, *sizes)


@pytest.mark.rule("KV-DEV-15")
@pytest.mark.parametrize("num", [1023, 1024, 1025, 2500])
def test_rows_that_take_several_rounds(num: int) -> None:
    assert check_steps(num, num, num + 7, num_steps=2, suffices=True) > 40
