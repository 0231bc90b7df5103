"""Messages reach a slow device as they were, though the host goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvfast.device.tables.staging import Staging
from kvfast.device.tables.state import Header

NUM_WORDS = 20


class SlowDevice:
    """Copies are done as late as they may be: when an event behind them is waited for."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], None]] = []
        self.num_done = 0
        self.arrived: list[list[int]] = []

    def __getitem__(self, part: slice) -> SlowDevice:
        return self

    def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.queued.append(lambda: self.arrived.append(source.tolist()))

    def work(self, until: int) -> None:
        """Do the copies before this one that were not done yet."""
        for copy in self.queued[self.num_done : until]:
            copy()
        self.num_done = max(self.num_done, until)


class Event:
    """As CUDA's: behind the copies so far when it was recorded; before that nothing to wait for."""

    def __init__(self, device: SlowDevice) -> None:
        self.device = device
        self.behind = 0

    def record(self) -> None:
        self.behind = len(self.device.queued)

    def synchronize(self) -> None:
        self.device.work(self.behind)


class NeverWaits(Event):
    """Writes to a buffer whose copy has not begun."""

    def synchronize(self) -> None:
        """At once."""


def sent_to(device: Any, event: type[Event]) -> list[list[int]]:
    """Seven messages of growing length, and what should arrive."""
    staging = Staging(NUM_WORDS, torch.device("cpu"))
    staging._events = [event(device), event(device)]
    wanted = []
    for number in range(7):
        header = Header(num_entries=number)
        words = torch.arange(number) + 100 * number
        staging.send(header, [words, words + 50], device)
        wanted.append([*header.to_list(), *words.tolist(), *(words + 50).tolist()])
    device.work(len(device.queued))
    assert staging.copied_bytes == 4 * sum(map(len, wanted))
    return wanted


@pytest.mark.rule("KV-DEV-13")
def test_a_buffer_is_not_written_while_a_copy_reads_it() -> None:
    device = SlowDevice()
    assert sent_to(device, Event) == device.arrived


def test_the_host_waits_only_for_the_copy_before_the_last() -> None:
    device = SlowDevice()
    staging = Staging(NUM_WORDS, torch.device("cpu"))
    staging._events = [Event(device), Event(device)]
    done = []
    for number in range(4):
        staging.send(Header(num_entries=number), [], device)
        done.append(device.num_done)
    assert done == [0, 0, 1, 2]


def test_a_buffer_that_is_written_too_early_is_seen() -> None:
    device = SlowDevice()
    assert sent_to(device, NeverWaits) != device.arrived
