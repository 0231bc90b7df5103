"""Lives of sampled blocks (KV-STAT-6, KV-STAT-7)."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable

from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError
from kvspec.stats import ResidencySample


class ResidencyLog:
    """Times of the blocks that are followed: birth, and the last four touches.

    All that one call notes has the time `now`, for which `ask` was called before.
    """

    def __init__(self, rate: float, clock: Callable[[], int]) -> None:
        self.rate = rate
        self.clock = clock
        self.now = 0
        self.num_allocated = 0
        self.births: dict[int, int] = {}
        self.touches: dict[int, deque[int]] = {}
        self.samples: list[ResidencySample] = []

    def ask(self) -> None:
        """Read the clock, whose time applies until this is called again.

        InvalidArgumentError if it returns no int; its own exceptions are passed on.
        """
        answer = self.clock()
        if not is_int(answer):
            raise InvalidArgumentError("clock()", answer, "an int of nanoseconds")
        self.now = answer if type(answer) is int else int.__index__(answer)

    def allocated(self, block: int) -> None:
        """Count an allocation; follow it if the sampled share has fallen behind."""
        before = math.floor(self.num_allocated * self.rate)
        self.num_allocated += 1
        if math.floor(self.num_allocated * self.rate) > before:
            self.births[block] = self.now
            self.touches[block] = deque(maxlen=4)

    def touched(self, block: int) -> None:
        """Note that a hit took a reference."""
        if block in self.births:
            self.touches[block].append(self.now)

    def ended(self, block: int) -> None:
        """Note that the block was taken again or evicted by id."""
        birth = self.births.pop(block, None)
        if birth is None:
            return
        touches = list(self.touches.pop(block))
        gaps = [touches[i + 1] - touches[i] for i in range(len(touches) - 1)]
        idle_since = touches[-1] if touches else birth
        self.samples.append(ResidencySample(self.now - birth, self.now - idle_since, tuple(gaps)))

    def reset(self) -> None:
        """Drop everything, including samples not yet taken."""
        self.births.clear()
        self.touches.clear()
        self.samples.clear()

    def take(self) -> tuple[ResidencySample, ...]:
        """Return and clear the samples."""
        taken = tuple(self.samples)
        self.samples.clear()
        return taken

    def copy(self) -> ResidencyLog:
        """Make an independent log with the same clock."""
        new = copy.copy(self)
        new.births = dict(self.births)
        new.touches = {block: deque(times, maxlen=4) for block, times in self.touches.items()}
        new.samples = list(self.samples)
        return new
