"""Messages to the device: packed in host memory, pinned for CUDA, and copied without waiting.

Two buffers by turns. An event after each copy says when its buffer may be written again: the host
waits only if it is two copies ahead of the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvfast.device.tables.state import Header

WORD_BYTES = 4


class Staging:
    """Host buffers of `num_words` int32 words for one device.

    `copied_bytes`: all that was copied so far.
    """

    def __init__(self, num_words: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._buffers = [
            torch.empty(num_words, dtype=torch.int32, pin_memory=pinned) for _ in range(2)
        ]
        self._events = [torch.Event(device) for _ in range(2)] if pinned else []
        self._turn = 0
        self.copied_bytes = 0

    def send(self, header: Header, parts: Sequence[torch.Tensor], staged: torch.Tensor) -> None:
        """Copy a header and what follows it to the device, by one copy on the current stream."""
        turn = self._turn
        if self._events:
            self._events[turn].synchronize()  # the copy of two messages ago; returns at once
        buffer = self._buffers[turn]
        words = torch.tensor(header.to_list(), dtype=torch.int32)
        some = [words, *(part for part in parts if part.shape[0])]
        end = sum(part.shape[0] for part in some)
        torch.cat(some, out=buffer[:end])
        staged[:end].copy_(buffer[:end], non_blocking=True)
        if self._events:
            self._events[turn].record()
        self._turn = 1 - turn
        self.copied_bytes += end * WORD_BYTES
