"""Blocks to the host beside the step that overwrites them: over spare blocks on the device.

    computing   blocks → spare blocks │ zero, write, attend: the step           │ …
    copying                           │ spare blocks → host blocks │ event      │

The first copy stays on the device and is fast. The second goes over the bus, while the step runs. A
spare block is used again after the event of the copy that read it, so the computing stream waits
only when there are too few of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from kvfast.device.base.memory import on_device
from kvfast.device.pages.pools import KVPools
from kvfast.device.pages.segments import segments
from kvfast.device.tier.swap import Swapper, Transfer, resized


class Offload:
    """Copies of blocks to the host that a step need not wait for.

    `num_blocks`: spare blocks, 1 or more; their pages are additional device memory.
    """

    def __init__(self, swapper: Swapper, num_blocks: int) -> None:
        pools = swapper.device_pools
        # Block 0 of any pool is null, so one more.
        self._spare = KVPools(
            resized(pools.cache, num_blocks + 1), device=pools.device, layout=pools.layout
        )
        self._form = swapper.form
        self._source, self._between = segments(pools, None), segments(self._spare, None)
        # On the same streams: a host block is read by a later swap only after it was written here.
        self._out = Swapper(
            self._spare, swapper.host_pools, backend=swapper.backend, streams=swapper.streams
        )
        self._num_blocks = self._num_free = num_blocks
        self._next = 0
        self._pending = deque[tuple[Transfer, int]]()

    @property
    def size_bytes(self) -> int:
        """Device memory of the spare blocks."""
        return self._spare.size_bytes

    def copy(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy `blocks[i]` to `host_blocks[i]`; what is queued from here on may overwrite `blocks`.

        The host blocks are whole for later swaps of the same streams.
        """
        for first in range(0, len(blocks), self._num_blocks):
            end = first + self._num_blocks
            self._copy(blocks[first:end], host_blocks[first:end])

    def _copy(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        num = len(blocks)
        while self._num_free < num:
            transfer, freed = self._pending.popleft()
            transfer.wait()
            self._num_free += freed
        spare = [1 + (self._next + number) % self._num_blocks for number in range(num)]
        self._next = (self._next + num) % self._num_blocks
        device = self._spare.device
        read, written = (on_device(torch.tensor(ids), device) for ids in (blocks, spare))
        self._form.copy_pages(self._source, self._between, read, written)
        self._pending.append((self._out.swap_out(spare, host_blocks), num))
        self._num_free -= num

    def synchronize(self) -> None:
        """Block until every copy has ended."""
        if self._pending:
            self._pending[-1][0].synchronize()
