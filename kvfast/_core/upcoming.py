"""Predict the next blocks of the free queue, to fetch their records in time.

Following the queue itself would take one dependent memory read per block. But most blocks are taken
in the order in which they were put there. A wrong guess costs one memory read.
"""

from __future__ import annotations

from . import objects, record
from .arrays import zeroed
from .key_map import KeyMap

FAR = 32
"""Blocks that are read ahead; a power of 2."""
NEAR = 5
"""The same for the start of a run of neighbours, which the processor soon detects itself."""


class Upcoming:
    """Guesses for one pool.

    - `later[block]`: the block put at the back FAR blocks after this one, as a distance from block
      + FAR: 0 for unused blocks.
    - `recent`: the last FAR that were put there; the next one replaces `recent[recent_at]`.
    - `step`: from the block taken last to the one after it.
    """

    def __init__(self, num_blocks: int, keys: KeyMap) -> None:
        self.num_blocks = num_blocks
        self.keys = keys
        self.later = zeroed("i", num_blocks)
        self.recent = zeroed("i", FAR)
        self.recent_at = 0
        self.step = 0

    def put(self, block: int) -> None:
        """Note that a block was put at the back."""
        before = self.recent[self.recent_at]
        self.later[before] = block - before - FAR
        self.recent[self.recent_at] = block
        self.recent_at = (self.recent_at + 1) & (FAR - 1)

    def taken(self, block: int, step: int) -> None:
        """Note that a block is taken from the front; the next one is `step` after it."""
        self.fetch(block + FAR + self.later[block])
        if step != self.step and -1 <= step <= 1:
            for far in range(1, NEAR):
                self.fetch(block + far * step)
        self.step = step

    def fetch(self, block: int) -> None:
        """Fetch the record of a block, if there is such a block."""
        if 0 < block < self.num_blocks:
            objects.fetch_int(self.keys.facts, record.INTS * block)
            objects.fetch_int(self.later, block)
