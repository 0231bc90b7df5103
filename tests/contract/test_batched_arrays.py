"""Arrays of other libraries as arguments and outputs of whole steps (KV-BATCH-3)."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.steps import Steps, slots_of
from kvspec.batched import StepOutput
from kvspec.errors import InvalidArgumentError
from tests.contract.hostile import Tensor


@pytest.mark.rule("KV-BATCH-3")
def test_arrays_of_both_widths_are_read_and_written(bench: Bench) -> None:
    for kind in (np.int32, np.int64):
        steps = Steps(bench)
        handles = np.array(steps.register(range(9), range(20, 23)), kind)
        rows, slots = np.full((5, 4), -7, np.int32), np.full(13, -7, np.int64)
        result = steps.batched.admit(
            handles, np.array([8, 3], kind), output=StepOutput(rows, [slots])
        )
        assert result.num_scheduled_tokens.tolist() == [8, 3]
        assert (rows[:3, 3] == [*steps.lists(0)[0], *steps.lists(1)[0]]).all()
        assert (slots[11:] == -7).all()
        assert (rows[3:] == -7).all()


@pytest.mark.rule("KV-BATCH-3")
def test_an_array_is_the_callers_again_after_the_call(bench: Bench) -> None:
    steps = Steps(bench)
    handles, slots = array("q", steps.register(range(9))), slots_of(9)
    steps.batched.admit(handles, output=StepOutput(None, [slots]))
    handles.append(7)
    slots.append(7)


@pytest.mark.rule("KV-BATCH-3")
def test_no_row_fits_an_array_without_rows(bench: Bench) -> None:
    steps = Steps(bench)
    output = StepOutput(np.zeros((0, 4), np.int32))
    result = steps.batched.admit(steps.register(range(9)), output=output)
    assert (result.num_deltas, result.num_deltas_left) == (0, 3)


def out_of_reach() -> None:
    raise TypeError("can't convert device memory")


@pytest.mark.rule("KV-BATCH-3")
def test_what_shares_its_memory_with_an_array_is_one(bench: Bench) -> None:
    steps = Steps(bench)
    handles = Tensor(np.array(steps.register(range(9)), np.int32))
    rows, slots = np.full((3, 4), -7, np.int32), np.full(9, -7, np.int64)
    output = StepOutput(Tensor(rows), [Tensor(slots)])
    assert steps.batched.admit(handles, output=output).num_deltas == 3
    assert rows[:, 3].tolist() == steps.lists(0)[0]
    assert slots[0] == steps.lists(0)[0][0] * 4
    on_a_device = Tensor(np.zeros(1, np.int32), out_of_reach)
    for call in (steps.batched.decode, steps.batched.take_deltas):
        with pytest.raises(InvalidArgumentError):
            call(on_a_device)


@pytest.mark.rule("KV-BATCH-3")
def test_tensors_on_the_host_are_arrays(bench: Bench) -> None:
    torch = pytest.importorskip("torch")
    steps = Steps(bench)
    handles = torch.tensor(steps.register(range(9)), dtype=torch.int32)
    rows = torch.full((3, 4), -7, dtype=torch.int32)
    slots = torch.full((9,), -7, dtype=torch.int64)
    result = steps.batched.admit(handles, output=StepOutput(rows, [slots]))
    assert result.num_deltas == 3
    assert rows[:, 3].tolist() == steps.lists(0)[0]
    assert int(slots[0]) == steps.lists(0)[0][0] * 4
    with pytest.raises(InvalidArgumentError):
        steps.batched.decode(torch.tensor([0.0]))
