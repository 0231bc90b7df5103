"""The pages of blocks as plain bytes, for what moves whole pages: tensors, and their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from kvfast.device.pages.pools import KVPools


@dataclass(frozen=True, eq=False)
class Segments:
    """Pages of some layers, or of all.

    - `pages`: uint8 views [num_blocks, bytes].
    - `table`: int64 [len(pages), 3] on the device that runs kernels, rows (address, stride, size)
      in bytes.
    - `page_bytes`: of the largest page. `word_bytes`: 16, 8, 4, 2 or 1, divides all in the table.
    """

    pages: tuple[torch.Tensor, ...]
    table: torch.Tensor
    num_blocks: int
    page_bytes: int
    word_bytes: int


def segments(pools: KVPools, group: int | None, *, device: torch.device | None = None) -> Segments:
    """Return the pages of one group's layers, or of all allocations for None. Waits for the device.

    `device`: where kernels run, if these pools are pinned host memory.
    """
    pages = pools.pages if group is None else _pages_of_group(pools, group)
    rows = [(one.data_ptr(), one.stride(0), one.shape[1]) for one in pages]
    word = gcd(16, *(number for row in rows for number in row))
    return Segments(
        pages,
        torch.tensor(rows, dtype=torch.int64)
        .reshape(-1, 3)
        .to(pools.device if device is None else device),
        pools.num_blocks,
        max((one.shape[1] for one in pages), default=0),
        word,
    )


def _pages_of_group(pools: KVPools, group: int) -> tuple[torch.Tensor, ...]:
    return tuple(layer.pages for layer in pools.layers.values() if layer.group == group)
