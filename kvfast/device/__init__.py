"""The device plane: the cache itself as torch tensors, and what moves data in it.

`__all__` is all that engines need, their annotations included. Nothing here is imported by
`import kvfast`. Names that need torch raise MissingDependencyError when asked for without it.
Kernels are Triton's on CUDA devices where it is installed, and plain torch anywhere else, with the
same results.

    base      layouts, errors, checks of arguments
    pages     pools, and what writes, reads, copies and zeroes their pages
    tables    block tables, lengths, positions and slots of each step
    hashing   block hashes of many prompts at once
    index     how much of each waiting prompt is cached
    resident  decode steps that the device decides alone
    tier      blocks in host memory
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kvfast.device.base.backend import Backend
from kvfast.device.base.errors import (
    DeviceMemoryError,
    MissingDependencyError,
    ResidentOrderError,
    RunDifferenceError,
)
from kvfast.device.base.layout import Layout

if TYPE_CHECKING:
    from kvfast.device.hashing import BlockHashes, hash_blocks
    from kvfast.device.index import Crossover, PrefixIndex
    from kvfast.device.pages import PADDING_SLOT, Ids, KVPools, Layer, PageOperations
    from kvfast.device.resident import ResidentDecode, ResidentRun
    from kvfast.device.tables import DeviceStep, DeviceTables, TableDifference
    from kvfast.device.tier import HostTier, Swapper, Transfer

__all__ = [
    "PADDING_SLOT",
    "Backend",
    "BlockHashes",
    "Crossover",
    "DeviceMemoryError",
    "DeviceStep",
    "DeviceTables",
    "HostTier",
    "Ids",
    "KVPools",
    "Layer",
    "Layout",
    "MissingDependencyError",
    "PageOperations",
    "PrefixIndex",
    "ResidentDecode",
    "ResidentOrderError",
    "ResidentRun",
    "RunDifferenceError",
    "Swapper",
    "TableDifference",
    "Transfer",
    "hash_blocks",
]

_FOLDERS: Mapping[str, str] = {
    "BlockHashes": "hashing",
    "Crossover": "index",
    "DeviceStep": "tables",
    "DeviceTables": "tables",
    "HostTier": "tier",
    "Ids": "pages",
    "KVPools": "pages",
    "Layer": "pages",
    "PADDING_SLOT": "pages",
    "PageOperations": "pages",
    "PrefixIndex": "index",
    "ResidentDecode": "resident",
    "ResidentRun": "resident",
    "Swapper": "tier",
    "TableDifference": "tables",
    "Transfer": "tier",
    "hash_blocks": "hashing",
}
"""The modules of names that need torch."""


def __getattr__(name: str) -> object:
    folder = _FOLDERS.get(name)
    if folder is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("torch") is None:
        raise MissingDependencyError("torch", "kvspec[torch]", f"kvfast.device.{name}")
    return getattr(import_module(f"{__name__}.{folder}"), name)
