"""Runs with one mistake each: random runs between random steps see all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvfast.device import ResidentDecode, RunDifferenceError
from kvfast.device.resident import plain as _resident_torch
from kvfast.device.resident import plan as _resident_plan
from kvfast.device.resident.state import NUM_RESERVED, RunState
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.handover import Loan
from kvfast.device.tables.lengths import Lengths
from kvfast.device.tables.state import DeviceState
from tests.device.resident import resident_engines
from tests.device.test_resident import the_same_batch_before_and_after_a_run

decide = _resident_torch.decide


class Deciding(ResidentDecode):
    """With another form of the decisions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._form = SimpleNamespace(decide=self.decide)  # type: ignore[assignment] # in its place

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        """The wrong decision."""
        raise NotImplementedError


class TakesFromTheBack(Deciding):
    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        num = int(run.control[NUM_RESERVED])
        turned = run.reserve.clone()
        turned[:num] = run.reserve[:num].flip(0)
        decide(state, replace(run, reserve=turned), geometry)


class TakesGroupAfterGroup(Deciding):
    """All blocks of the first group, then all of the second."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        before = int(run.control[3])
        decide(state, run, geometry)
        taken = run.log[before : int(run.control[3])].long()
        blocks = state.entries[taken].clone()
        state.entries[taken.sort().values] = blocks


class GoesBackwards(Deciding):
    """The last request takes first."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        before = int(run.control[3])
        decide(state, run, geometry)
        taken = run.log[before : int(run.control[3])].long()
        state.entries[taken] = state.entries[taken].flip(0)


class CrossesTooEarly(Deciding):
    """A list grows when its last block is full, not when the next token comes."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        state.num_computed.add_(1)
        decide(state, run, geometry)
        state.num_computed.sub_(1)


class ForgetsWhoEnded(Deciding):
    """Requests go on until the run ends."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        run.left[: int(run.control[0])] = 2
        decide(state, run, geometry)


class ForgetsToCount(Deciding):
    """The next block is taken for the same entry."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        before = run.lengths.clone()
        decide(state, run, geometry)
        run.lengths.copy_(before)


class LeavesTheLengths(Deciding):
    """Tokens are granted, and the rows are as long as before."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        before = state.num_computed.clone()
        decide(state, run, geometry)
        state.num_computed.copy_(before)


class GoesOnUnplanned(Deciding):
    """As many steps as are launched."""

    def decide(self, state: DeviceState, run: RunState, geometry: Geometry) -> None:
        run.control[2] = 1000
        decide(state, run, geometry)


class ForgetsTheSlots(ResidentDecode):
    """Slots are those of the step before."""

    def step(self) -> Any:
        self._form.decide(self._loan.state, self._run, self._loan.geometry)
        return self._loan.tables._device.step(len(self._handles), len(self._handles), 1, 1)


TWINS = (
    TakesFromTheBack,
    TakesGroupAfterGroup,
    GoesBackwards,
    CrossesTooEarly,
    ForgetsWhoEnded,
    ForgetsToCount,
    LeavesTheLengths,
    GoesOnUnplanned,
    ForgetsTheSlots,
)


def forgets_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks without a key may come back during a run."""
    monkeypatch.setattr(_resident_plan, "has_windows", lambda config: False)


def keeps_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host believes that the device has the batch of the step before the run."""
    end = Loan.end

    def keeping(self: Loan, handles: Any, granted: Any) -> None:
        batch = self.tables._batch
        end(self, handles, granted)
        self.tables._batch = batch

    monkeypatch.setattr(Loan, "end", keeping)


def forgets_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host does not hear how long the sequences are."""
    monkeypatch.setattr(Lengths, "add_computed", lambda self, rows, numbers: None)


def run_all(resident: type[ResidentDecode] = ResidentDecode) -> None:
    for _ in resident_engines(range(60), resident=resident):
        pass


@pytest.mark.parametrize("twin", TWINS, ids=lambda cls: str(cls.__name__))
def test_a_wrong_decision_is_seen(twin: type[ResidentDecode]) -> None:
    with pytest.raises((AssertionError, RunDifferenceError)):
        run_all(twin)


@pytest.mark.parametrize("mistake", [forgets_windows, forgets_the_lengths])
def test_a_mistake_of_the_host_is_seen(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises((AssertionError, RunDifferenceError, ValueError)):
        run_all()


def test_a_batch_that_is_wrongly_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_the_batch(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        the_same_batch_before_and_after_a_run("torch")
