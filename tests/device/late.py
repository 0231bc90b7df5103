"""Streams for tests: each copy is made as late as the order allows, so a missing wait is seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch

from kvfast.device.tier.streams import Event


class LateEvent:
    """A copy that is not made until it, or a later one, is waited for."""

    def __init__(self, streams: LateStreams, work: Callable[[], None]) -> None:
        self.streams, self.work = streams, work
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        while not self.is_done:
            first = self.streams.queue.popleft()
            first.work()
            first.is_done = True


class LateStreams:
    """Copies one after another; what computes is done at once, as it is in host memory."""

    def __init__(self) -> None:
        self.queue = deque[LateEvent]()
        self.num_started = self.num_waits = 0

    def start(self, work: Callable[[], None], used: Iterable[torch.Tensor]) -> LateEvent:
        event = LateEvent(self, work)
        self.queue.append(event)
        self.num_started += 1
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, LateEvent)
        self.num_waits += not event.is_done
        event.synchronize()
