"""A simulation of the workers: memory on a device, a table of blocks, a model that samples."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

VOCABULARY = 3  # small, so that a drafter that knows nothing is right now and then


@dataclass(frozen=True)
class Batch:
    """The message of a step to the workers.

    - `deltas`: int32 [n, 4], rows (handle, group, index, block).
    - `zeroed`: blocks to be zeroed before anything is written.
    - `tokens`, `slots`: int64 [m], the tokens to compute and the slots for their keys and values.
    """

    deltas: npt.NDArray[np.int32]
    zeroed: tuple[int, ...]
    tokens: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]


class Workers:
    """Keys and values are the tokens themselves: a wrong slot or block is read as a wrong token.

    `memory`: a token per slot. `table`: the block at [handle, index].
    """

    def __init__(self, num_blocks: int, block_size: int, num_handles: int) -> None:
        self.block_size = block_size
        self.memory = np.zeros(num_blocks * block_size, np.int64)
        self.table = np.zeros((num_handles, num_blocks), np.int32)

    def run(self, batch: Batch) -> None:
        """Bring the table up to date, zero new blocks, write the tokens' keys and values."""
        handles, _, indices, blocks = batch.deltas.T
        self.table[handles, indices] = blocks
        self.memory.reshape(-1, self.block_size)[list(batch.zeroed)] = 0
        self.memory[batch.slots] = batch.tokens

    def next_token(self, handle: int, num_tokens: int) -> int:
        """Return the token after the first `num_tokens`, computed from the slots in the table."""
        index, offset = np.divmod(np.arange(num_tokens), self.block_size)
        return sampled(self.memory[self.table[handle, index] * self.block_size + offset])


def sampled(context: npt.NDArray[np.int64]) -> int:
    """Return a token that depends on every token before it."""
    return crc32(context.tobytes()) % VOCABULARY
