"""Lifetimes of blocks, and how often they are touched (KV-STAT-6, KV-STAT-7)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError
from kvspec.stats import ResidencySample

MAX_TOUCHES = 4


@dataclass
class BlockLife:
    """One sampled block: when it was allocated, and its last four touches."""

    birth_ns: int
    touches_ns: list[int] = field(default_factory=list)


class ResidencyLog:
    """Follows a share of all allocations."""

    def __init__(self, rate: float, clock: Callable[[], int]) -> None:
        self.rate = rate
        self.clock = clock
        self.now_ns = 0
        self.num_allocations = 0
        self.lives: dict[int, BlockLife] = {}
        self.samples: list[ResidencySample] = []

    def ask(self) -> None:
        """Read the clock; its time applies to all that happens until the next call."""
        answer = self.clock()
        if not is_int(answer):
            raise InvalidArgumentError("clock()", answer, "an int, in nanoseconds")
        self.now_ns = answer

    def allocated(self, block: int) -> None:
        """Follow this allocation if its number says so (KV-STAT-7).

        At rate 0.25 the allocations number 3, 7, 11, … are sampled.
        """
        n = self.num_allocations
        self.num_allocations += 1
        if math.floor((n + 1) * self.rate) > math.floor(n * self.rate):
            self.lives[block] = BlockLife(self.now_ns)

    def touched(self, block: int) -> None:
        """Note that a hit took a reference on the block."""
        if block in self.lives:
            touches = self.lives[block].touches_ns
            touches.append(self.now_ns)
            del touches[:-MAX_TOUCHES]

    def ended(self, block: int) -> None:
        """Record the life of a block that was reallocated or evicted by id."""
        life = self.lives.pop(block, None)
        if life is None:
            return
        now = self.now_ns
        last_use = life.touches_ns[-1] if life.touches_ns else life.birth_ns
        gaps = [b - a for a, b in zip(life.touches_ns, life.touches_ns[1:], strict=False)]
        self.samples.append(ResidencySample(now - life.birth_ns, now - last_use, tuple(gaps)))

    def reset(self) -> None:
        """Forget every life and every sample that was not taken yet."""
        self.lives = {}
        self.samples = []

    def take(self) -> tuple[ResidencySample, ...]:
        """Return the samples since the last call."""
        samples = tuple(self.samples)
        self.samples = []
        return samples
