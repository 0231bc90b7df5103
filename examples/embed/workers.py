"""A simulation of the workers: memory on a device, a table of blocks, a model, and a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


class Store:
    """Keys and values of texts, elsewhere.

    A load takes `num_steps` steps. `fails`, called once for each, returns whether it fails.
    """

    def __init__(
        self,
        workers: Workers,
        texts: Iterable[Sequence[int]] = (),
        *,
        num_steps: int = 1,
        fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self.workers, self.num_steps, self.fails = workers, num_steps, fails
        self.texts = [list(text) for text in texts]
        self.loads: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self.steps_left: dict[int, int] = {}

    def num_stored(self, token_ids: Sequence[int]) -> int:
        """Return how many of the first tokens it has, in whole blocks."""
        size = self.workers.block_size
        return max((num_common(text, token_ids) // size * size for text in self.texts), default=0)

    def start(
        self, number: int, token_ids: Sequence[int], blocks: Sequence[int], begin: int
    ) -> None:
        """Load what it has of these tokens from `begin` on into the blocks of their request."""
        size, end = self.workers.block_size, self.num_stored(token_ids)
        index, offset = np.divmod(np.arange(begin, end), size)
        slots = np.array(blocks)[index] * size + offset
        self.loads.append((number, slots, np.array(token_ids[begin:end])))
        self.steps_left[number] = self.num_steps

    def run(self) -> None:
        """Let a step pass."""
        for number in self.steps_left:
            self.steps_left[number] -= 1

    def take_ended(self) -> list[tuple[int, bool]]:
        """Return the numbers of the loads that ended, and whether their tokens are there."""
        ended = [load for load in self.loads if self.steps_left[load[0]] <= 0]
        self.loads = [load for load in self.loads if self.steps_left[load[0]] > 0]
        results = []
        for number, slots, tokens in ended:
            del self.steps_left[number]
            results.append((number, not self.fails()))
            if results[-1][1]:
                self.workers.memory[slots] = tokens
        return results


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(first), len(second)))
