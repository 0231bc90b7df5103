"""The free queue: which blocks are free, and in which order they will be taken (KV-POOL-2).

A doubly linked list over two flat int arrays, `nxt` and `prv`, one entry per block, so that any
block leaves in O(1) and nothing is allocated per block. Block 0, the null block, is never free;
its entry is the list's head: `nxt[0]` is the front of the queue, `prv[0]` its back, and 0 is also
where a walk ends. A block that isn't in the queue has -1 in `nxt`.

    queue 3, 1 of 4 blocks:    nxt = [3, 0, -1, 1]    prv = [1, 3, -1, 0]

`take`, `unlink`, `put_last` and `put_after` trust their arguments: they are what the pool calls,
and in the compiled build C functions that can't be reached from outside. The others check.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kvspec.errors import InvalidArgumentError

from .arrays import zeroed


class FreeQueue:
    """A free queue; starts with the blocks 1 … num_blocks - 1 in this order.

    A wrong value given to a checked method raises InvalidArgumentError and changes nothing, the
    same in the compiled and the uncompiled build.
    """

    def __init__(self, num_blocks: int) -> None:
        # The arrays hold C ints.
        if type(num_blocks) is not int or not 1 <= num_blocks < 2**31:
            raise InvalidArgumentError("num_blocks", num_blocks, "an int in 1 … 2**31 - 1")
        self.nxt = zeroed("i", num_blocks)
        self.prv = zeroed("i", num_blocks)
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.link_all()

    # Trusted.

    def link_all(self) -> None:
        """Put every block but the null block into the queue, in the order of the ids."""
        n = self.num_blocks
        for block in range(n):
            self.nxt[block] = block + 1
            self.prv[block] = block - 1
        self.nxt[n - 1] = 0
        self.prv[0] = n - 1

    def take(self) -> int:
        """Take the block in front; there must be one."""
        block = self.nxt[0]
        after = self.nxt[block]
        self.nxt[0] = after
        self.prv[after] = 0
        self.nxt[block] = -1
        self.num_free -= 1
        return block

    def unlink(self, block: int) -> None:
        """Take out a block wherever it stands; it must be in the queue."""
        before = self.prv[block]
        after = self.nxt[block]
        self.nxt[before] = after
        self.prv[after] = before
        self.nxt[block] = -1
        self.num_free -= 1

    def put_after(self, left: int, block: int) -> None:
        """Put a block right behind the entry `left` (0: in front); it must not be in the queue."""
        right = self.nxt[left]
        self.nxt[left] = block
        self.prv[block] = left
        self.nxt[block] = right
        self.prv[right] = block
        self.num_free += 1

    def put_last(self, block: int) -> None:
        """Put a block at the back; it must not be in the queue."""
        self.put_after(self.prv[0], block)

    # Checked.

    def __len__(self) -> int:
        """Number of free blocks. O(1)."""
        return self.num_free

    def pop_front_n(self, count: int) -> list[int]:
        """Take `count` blocks off the front, the next to be taken first. O(count)."""
        if type(count) is not int or not 0 <= count <= self.num_free:
            raise InvalidArgumentError("count", count, f"an int in 0 … {self.num_free}")
        return [self.take() for _ in range(count)]

    def remove(self, block: int) -> None:
        """Take out a free block wherever it stands. O(1)."""
        self._check_block("block", block)
        if self.nxt[block] < 0:
            raise InvalidArgumentError("block", block, "a block that is in the queue")
        self.unlink(block)

    def append_run(self, blocks: Iterable[int]) -> None:
        """Put blocks at the back, in their order. O(len(blocks))."""
        for block in self._checked_run(blocks):
            self.put_last(block)

    def prepend_run(self, blocks: Iterable[int]) -> None:
        """Put blocks in front, in their order: the first is taken next. O(len(blocks))."""
        left = 0
        for block in self._checked_run(blocks):
            self.put_after(left, block)
            left = block

    def length(self) -> int:
        """Number of free blocks, counted by walking the queue: the audit of `len`. O(n)."""
        return len(self.to_list())

    def to_list(self) -> list[int]:
        """The free blocks from front to back. O(n)."""
        blocks = []
        block = self.nxt[0]
        while block != 0:
            blocks.append(block)
            block = self.nxt[block]
        return blocks

    def _check_block(self, field: str, block: object) -> None:
        # Exactly int: a bool or a float that equals an id is a caller's mistake.
        if type(block) is not int or not 1 <= block < self.num_blocks:
            allowed = f"an int in 1 … {self.num_blocks - 1}, the null block left out"
            raise InvalidArgumentError(field, block, allowed)

    def _checked_run(self, blocks: Iterable[int]) -> array[int]:
        if not isinstance(blocks, Iterable):
            raise InvalidArgumentError("blocks", blocks, "an iterable of block ids")
        run = list(blocks)
        seen: set[int] = set()
        for i, block in enumerate(run):
            self._check_block(f"blocks[{i}]", block)
            if block in seen or self.nxt[block] >= 0:
                allowed = "a block that is not in the queue, given once"
                raise InvalidArgumentError(f"blocks[{i}]", block, allowed)
            seen.add(block)
        return array("i", run)
