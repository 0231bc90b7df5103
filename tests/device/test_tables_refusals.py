"""What tables refuse: the error names it, and nothing has changed."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from kvfast.device import DeviceMemoryError, DeviceTables
from kvfast.device.tables import state as _tables_state
from kvfast.device.tables.state import DeviceState
from kvspec.batched import StepPlan, StepResult
from kvspec.errors import InvalidArgumentError
from tests.device.tables import FULL, MAMBA, rows_of, tables_of

BAD: dict[str, tuple[Callable[[DeviceTables], object], str]] = {
    "a handle below 0": (lambda t: t.update([0, -1], [1, 1]), "handles[1]"),
    "a handle that no table can have": (lambda t: t.update([2**40], [1]), "handles[0]"),
    "a handle twice": (lambda t: t.update([1, 0, 1], [1, 1, 1]), "handles[2]"),
    "a handle that is no int": (lambda t: t.update([0, True], [1, 1]), "handles[1]"),
    "handles of floats": (lambda t: t.update(torch.ones(1), [1]), "handles"),
    "handles in two dimensions": (lambda t: t.update(np.ones((1, 1), int), [1]), "handles"),
    "a negative count": (lambda t: t.update([0, 1], [1, -1]), "num_scheduled[1]"),
    "a count too few": (lambda t: t.update([0, 1], [1]), "num_scheduled"),
    "more tokens than fit": (lambda t: t.update([0, 1], [9, 8]), "num_scheduled"),
    "one count of too many": (lambda t: t.update([0, 1], [2**62, 2**62]), "num_scheduled[0]"),
    "a sequence too long": (lambda t: t.update([1], [16]), "num_scheduled"),
    "rows of int64": (lambda t: t.update([0], [1], rows_of().long()), "deltas"),
    "rows of three": (lambda t: t.update([0], [1], rows_of()[:, :3]), "deltas"),
    "flat rows": (lambda t: t.update([0], [1], array("i", [0, 0, 0, 1])), "deltas"),
    "no rows at all": (lambda t: t.update([0], [1], 4), "deltas"),  # type: ignore[arg-type] # on purpose
    "a handle of a row": (lambda t: t.write(rows_of((-1, 0, 0, 1))), "deltas[0].handle"),
    "a group that is not there": (
        lambda t: t.update([0], [1], rows_of((0, 0, 0, 1), (0, 2, 0, 1))), "deltas[1].group"
    ),
    "an index as large as the width": (
        lambda t: t.update([0], [1], rows_of((0, 1, 6, 1))), "deltas[0].index"
    ),
    "a block beyond the pool": (
        lambda t: t.update([0], [1], rows_of((0, 1, 5, 20))), "deltas[0].block"
    ),
    "more rewound than computed": (lambda t: t.rewind([1, 0], [1, 1]), "num_tokens[1]"),
    "a negative rewind": (lambda t: t.rewind([0], -1), "num_tokens"),
    "a length beyond the longest": (lambda t: t.set_lengths([0], [33]), "lengths[0]"),
    "a list longer than the row": (lambda t: t.set_row(0, 1, [1] * 7), "blocks"),
    "a list with a block beyond the pool": (lambda t: t.set_row(0, 1, [1, 20]), "blocks[1]"),
    "a list of no group": (lambda t: t.set_row(0, 2, [1]), "group"),
    "fewer rows than the step wrote": (
        lambda t: t.step(StepPlan(decoding=[0]), result_of(1, num_deltas=2), rows_of((0, 0, 0, 1))),
        "deltas",
    ),
    "no hit of a new request": (
        lambda t: t.step(StepPlan(new=[0]), result_of(1)), "result.hit_tokens"
    ),
}  # fmt: skip


def result_of(*scheduled: int, num_deltas: int = 0) -> StepResult:
    """Without any hit."""
    return StepResult(array("q", scheduled), array("q"), num_deltas=num_deltas)


@pytest.mark.rule("KV-DEV-14")
@pytest.mark.parametrize("name", BAD)
def test_what_is_illegal_is_named_and_changes_nothing(name: str) -> None:
    call, field = BAD[name]
    tables, other = (tables_of(FULL, MAMBA) for _ in range(2))
    for one in (tables, other):
        one.update([1], [12], rows_of((1, 0, 0, 3)))
        one.update([1], [6], rows_of((0, 0, 1, 3)))
        one.rewind([1], [1])
    with pytest.raises(InvalidArgumentError) as caught:
        call(tables)
    assert caught.value.field == field
    for one in (tables, other):
        one.update([1], [5])
    for member in fields(DeviceState):
        left, right = (getattr(one._device.state, member.name) for one in (tables, other))
        assert torch.equal(left, right)
    assert tables.staged_bytes == other.staged_bytes


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_requests": 0}, "max_requests"),
        ({"max_requests": 2**31}, "max_requests"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_entries": 0}, "max_entries"),
        ({"widths": [3, 4]}, "widths"),
        ({"widths": [0]}, "widths[0]"),
        ({"backend": "cuda"}, "backend"),
    ],
)
def test_tables_that_cannot_be_made_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        tables_of(FULL, **options)
    assert caught.value.field == field


@pytest.mark.rule("KV-DEV-14")
@pytest.mark.parametrize("answers", [[100], [None, 100]], ids=["asked", "tried"])
def test_without_room_to_grow_everything_stays(
    answers: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free memory is asked before; where it isn't known, torch refuses."""
    tables = tables_of(FULL, MAMBA)
    tables.update([1], [3], rows_of((1, 0, 0, 3)))
    full = torch.full

    def no_room(size: Any, *args: Any, **options: Any) -> torch.Tensor:
        if size == (8 * (8 + 6) + 1,):
            raise torch.OutOfMemoryError
        return full(size, *args, **options)

    monkeypatch.setattr(torch, "full", no_room)
    monkeypatch.setattr(_tables_state, "free_memory_bytes", lambda device: answers.pop(0))
    with pytest.raises(DeviceMemoryError) as caught:
        tables.update([1, 7], [1, 1], rows_of((7, 0, 0, 4)))
    assert (caught.value.free_bytes, caught.value.device) == (100, "cpu")
    assert caught.value.needed_bytes > 4 * 8 * 14
    assert (tables.max_requests, answers) == (2, [])
    assert tables.update([1], [1]).positions.tolist() == [3]
    assert tables.staged_bytes == 32 + 8
