"""The free queue: which blocks are free, and in which order they will be taken.

A doubly linked list over two flat int arrays, `nxt` and `prv`, one entry per block, so that any
block leaves in O(1) and nothing is allocated per block. Block 0, the null block, is never free;
its entry is the list's head: `nxt[0]` is the front of the queue, `prv[0]` its back, and 0 is also
where a walk ends. A block that isn't in the queue has -1 in both arrays.

    queue 3, 1 of 4 blocks:    nxt = [3, 0, -1, 1]    prv = [1, 3, -1, 0]

The functions trust their arguments: compiled, a wrong index would write outside the arrays. They
are C functions there and can't be reached from outside. `FreeQueue` is the one boundary where
values are checked.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kvspec.errors import InvalidArgumentError


def init(nxt: memoryview[int], prv: memoryview[int]) -> None:
    """Put every block but the null block into the queue, in the order of the ids."""
    n = len(nxt)
    for block in range(n):
        nxt[block] = block + 1
        prv[block] = block - 1
    nxt[n - 1] = 0
    prv[0] = n - 1


def pop_front_n(nxt: memoryview[int], prv: memoryview[int], out: memoryview[int]) -> None:
    """Take `len(out)` blocks off the front and write them to `out`; so many must be there."""
    block = nxt[0]
    for i in range(len(out)):
        out[i] = block
        after = nxt[block]
        nxt[block] = -1
        prv[block] = -1
        block = after
    nxt[0] = block
    prv[block] = 0


def remove(nxt: memoryview[int], prv: memoryview[int], block: int) -> None:
    """Take out a block wherever it stands; it must be in the queue."""
    before = prv[block]
    after = nxt[block]
    nxt[before] = after
    prv[after] = before
    nxt[block] = -1
    prv[block] = -1


def link_run(nxt: memoryview[int], prv: memoryview[int], run: memoryview[int], left: int) -> None:
    """Insert a run in its order, right behind the entry `left`; no block of it may be in."""
    right = nxt[left]
    for i in range(len(run)):
        block = run[i]
        nxt[left] = block
        prv[block] = left
        left = block
    nxt[left] = right
    prv[right] = left


def append_run(nxt: memoryview[int], prv: memoryview[int], run: memoryview[int]) -> None:
    """Put a run at the back: its last block becomes the last to be taken."""
    link_run(nxt, prv, run, prv[0])


def prepend_run(nxt: memoryview[int], prv: memoryview[int], run: memoryview[int]) -> None:
    """Put a run in front: its first block becomes the next to be taken."""
    link_run(nxt, prv, run, 0)


def length(nxt: memoryview[int]) -> int:
    """Number of blocks in the queue, counted by walking it."""
    count = 0
    block = nxt[0]
    while block != 0:
        count += 1
        block = nxt[block]
    return count


def to_list(nxt: memoryview[int]) -> list[int]:
    """The queue from front to back."""
    blocks = []
    block = nxt[0]
    while block != 0:
        blocks.append(block)
        block = nxt[block]
    return blocks


class FreeQueue:
    """A free queue whose calls are checked: a wrong value raises and nothing is changed.

    Starts with the blocks 1 … num_blocks - 1 in this order. Every error is an
    `InvalidArgumentError`, the same in the compiled and the uncompiled build.
    """

    def __init__(self, num_blocks: int) -> None:
        # The arrays hold C ints.
        if type(num_blocks) is not int or not 1 <= num_blocks < 2**31:
            raise InvalidArgumentError("num_blocks", num_blocks, "an int in 1 … 2**31 - 1")
        self._nxt = memoryview(array("i", [0]) * num_blocks)
        self._prv = memoryview(array("i", [0]) * num_blocks)
        init(self._nxt, self._prv)
        self._length = num_blocks - 1

    def __len__(self) -> int:
        """Number of free blocks. O(1)."""
        return self._length

    def pop_front_n(self, count: int) -> list[int]:
        """Take `count` blocks off the front, the next to be taken first. O(count)."""
        if type(count) is not int or not 0 <= count <= self._length:
            raise InvalidArgumentError("count", count, f"an int in 0 … {self._length}")
        out = array("i", [0]) * count
        pop_front_n(self._nxt, self._prv, memoryview(out))
        self._length -= count
        return out.tolist()

    def remove(self, block: int) -> None:
        """Take out a free block wherever it stands. O(1)."""
        self._check_block("block", block)
        if self._nxt[block] < 0:
            raise InvalidArgumentError("block", block, "a block that is in the queue")
        remove(self._nxt, self._prv, block)
        self._length -= 1

    def append_run(self, blocks: Iterable[int]) -> None:
        """Put blocks at the back, in their order. O(len(blocks))."""
        run = self._checked_run(blocks)
        append_run(self._nxt, self._prv, run)
        self._length += len(run)

    def prepend_run(self, blocks: Iterable[int]) -> None:
        """Put blocks in front, in their order: the first is taken next. O(len(blocks))."""
        run = self._checked_run(blocks)
        prepend_run(self._nxt, self._prv, run)
        self._length += len(run)

    def length(self) -> int:
        """Number of free blocks, counted by walking the queue: the audit of `len`. O(n)."""
        return length(self._nxt)

    def to_list(self) -> list[int]:
        """The free blocks from front to back. O(n)."""
        return to_list(self._nxt)

    def _check_block(self, field: str, block: object) -> None:
        # Exactly int: a bool or a float that equals an id is a caller's mistake.
        if type(block) is not int or not 1 <= block < len(self._nxt):
            allowed = f"an int in 1 … {len(self._nxt) - 1}, the null block left out"
            raise InvalidArgumentError(field, block, allowed)

    def _checked_run(self, blocks: Iterable[int]) -> memoryview[int]:
        if not isinstance(blocks, Iterable):
            raise InvalidArgumentError("blocks", blocks, "an iterable of block ids")
        run = list(blocks)
        seen: set[int] = set()
        for i, block in enumerate(run):
            self._check_block(f"blocks[{i}]", block)
            if block in seen or self._nxt[block] >= 0:
                allowed = "a block that is not in the queue, given once"
                raise InvalidArgumentError(f"blocks[{i}]", block, allowed)
            seen.add(block)
        return memoryview(array("i", run))
