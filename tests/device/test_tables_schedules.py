"""Tables on the device under random schedules of a real manager, and tables with one mistake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvfast.device import DeviceTables
from kvfast.device.tables.batch import Batch
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.side import DeviceSide
from kvspec.batched import Ints
from tests.device.tables import engines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.rule("KV-DEV-9", "KV-DEV-10", "KV-DEV-11", "KV-DEV-12")
def test_tables_are_what_the_manager_answers_after_every_step() -> None:
    played = list(engines(range(60), "torch"))
    assert sum(engine.num_steps for engine in played) == 1200
    assert sum(engine.num_rewound for engine in played) > 100
    assert max(engine.tables.max_requests for engine in played) > 2


@pytest.mark.rule("KV-DEV-9", "KV-DEV-10", "KV-DEV-11", "KV-DEV-12")
def test_tables_of_kernels_are_what_the_manager_answers() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    played = list(engines(range(7, 13), "triton", num_steps=7))
    assert sum(engine.num_granted for engine in played) > 30


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_tables_are_right_under_many_schedules(backend: Any) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    num = 3000 if backend == "torch" else 60
    for _ in engines(range(1000, 1000 + num), backend):
        pass


class MissesADelta(DeviceTables):
    """The last row of a step stays behind."""

    def _stage(self, handles: Ints, num: Ints, rows: torch.Tensor, changed: Any = None) -> Any:
        return super()._stage(handles, num, rows[:-1], changed)


class ForgetsTheRewind(DeviceTables):
    """Rejected drafts stay computed."""

    def rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Nothing."""


class ForgetsTheRelease(DeviceTables):
    """The next request of a row goes on where the last one ended."""

    def _stage(self, handles: Ints, num: Ints, rows: torch.Tensor, changed: Any = None) -> Any:
        return super()._stage(handles, num, rows)


class ForgetsTheHit(DeviceTables):
    """New requests begin at 0."""

    def step(self, plan: Any, result: Any, deltas: Any = None) -> Any:
        none = torch.zeros(len(result.hit_tokens), dtype=torch.int64)
        return super().step(plan, replace(result, hit_tokens=none), deltas)


class LeavesMovedBlocks(DeviceTables):
    """Groups whose blocks move are told like the others."""

    def read_rows(self, batched: Any, handles: Ints) -> None:
        """Nothing."""


class ForgetsTheLateRows(DeviceTables):
    """Rows that did not fit are lost."""

    def write(self, deltas: Any) -> None:
        """Nothing."""


class KnowsOnlyHandles(DeviceTables):
    """A batch of the same requests with other counts is taken for the same."""

    def _stage(self, handles: Ints, num: Ints, rows: torch.Tensor, changed: Any = None) -> Any:
        last = self._batch
        if torch.equal(torch.as_tensor(handles), last.handles):
            self._batch = Batch(last.handles, torch.as_tensor(num), last.rows, last.granted)
        return super()._stage(handles, num, rows, changed)


class CutShort(DeviceSide):
    """Of a message that is too long only the end is done."""

    def send(self, entries: Any, lengths: Any, batch: Any, *, is_new: bool) -> int:
        addresses, blocks = (part[-self.max_entries :] for part in entries)
        return super().send((addresses, blocks), lengths, batch, is_new=is_new)


class LosesTheRowsThatDidNotFit(DeviceTables):
    """One message per step, however much there is."""

    def _new_side(self, geometry: Geometry, max_entries: int) -> DeviceSide:
        return CutShort(geometry, self.max_tokens, max_entries, self.device, self.backend)


class Forgetful(DeviceSide):
    """More rows, and nothing in them."""

    def take_over(self, before: DeviceSide) -> None:
        """Nothing."""


class ForgetsWhatItKnewWhenGrowing(DeviceTables):
    """Growth begins with an empty table."""

    def _new_side(self, geometry: Geometry, max_entries: int) -> DeviceSide:
        return Forgetful(geometry, self.max_tokens, max_entries, self.device, self.backend)


class HasRowsOfAnotherWidth(DeviceTables):
    """The host counts a row one entry shorter than the device."""

    def _stage(self, handles: Ints, num: Ints, rows: torch.Tensor, changed: Any = None) -> Any:
        self._entries._widths = self._entries._widths - 1
        try:
            return super()._stage(handles, num, rows, changed)
        finally:
            self._entries._set_offsets()


MISTAKES = (
    MissesADelta,
    ForgetsTheRewind,
    ForgetsTheRelease,
    ForgetsTheHit,
    LeavesMovedBlocks,
    ForgetsTheLateRows,
    KnowsOnlyHandles,
    LosesTheRowsThatDidNotFit,
    ForgetsWhatItKnewWhenGrowing,
    HasRowsOfAnotherWidth,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda cls: str(cls.__name__))
def test_a_mistake_in_tables_is_seen(mistake: type[DeviceTables]) -> None:
    with pytest.raises(AssertionError):
        list(engines(range(60), "torch", mistake))
