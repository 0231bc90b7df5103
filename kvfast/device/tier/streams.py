"""Two streams of one device, the one that computes and one for copies, and what they wait for.

A swapper asks for no more than this. So tests can put streams in its place that make every copy as
late as the order allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import torch


class Event(Protocol):
    """A place in the stream of copies."""

    def query(self) -> bool:
        """Return whether everything before it has ended; does not block."""

    def synchronize(self) -> None:
        """Block until it has ended."""


@runtime_checkable
class Streams(Protocol):
    """The computing stream of a device, whichever is current there, and a stream for copies."""

    def start(self, work: Callable[[], None], used: Iterable[torch.Tensor]) -> Event | None:
        """Do `work` on the copying stream, after all earlier work of the computing one.

        Work is done in the order in which it was started. `used`: tensors that live until
        the work has ended, even if nothing else keeps them. None: it has ended already.
        """

    def wait(self, event: Event) -> None:
        """Order later work of the computing stream after `event`. Doesn't block."""


class CudaStreams:
    """The streams of a CUDA device, which need not be the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copying = torch.cuda.Stream(device)

    def start(self, work: Callable[[], None], used: Iterable[torch.Tensor]) -> Event:
        self._copying.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copying):  # its device is then also the current one
            work()
            event: Event = self._copying.record_event()
        for tensor in used:
            tensor.record_stream(self._copying)  # its memory is not given to others before that
        return event

    def wait(self, event: Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


class NoStreams:
    """Host memory: everything is done at once."""

    def start(self, work: Callable[[], None], used: Iterable[torch.Tensor]) -> None:
        work()

    def wait(self, event: Event) -> None: ...


def streams_of(device: torch.device) -> Streams:
    """Return the streams for swaps from and to a device."""
    return CudaStreams(device) if device.type == "cuda" else NoStreams()
