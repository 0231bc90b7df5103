"""The device plane: the cache itself as torch tensors, and what moves data in it.

`__all__` is all that engines need, their annotations included; modules with an underscore are no
part of it. Nothing here is imported by `import kvfast`. Names that need torch raise
MissingDependencyError when asked for without it. Kernels are Triton's on CUDA devices where it is
installed, and plain torch anywhere else, with the same results.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kvfast.device._backend import Backend
from kvfast.device.errors import (
    DeviceMemoryError,
    MissingDependencyError,
    ResidentOrderError,
    RunDifferenceError,
)
from kvfast.device.layout import Layout

if TYPE_CHECKING:
    from kvfast.device._arguments import Ids
    from kvfast.device.hashing import BlockHashes, hash_blocks
    from kvfast.device.host_tier import HostTier
    from kvfast.device.operations import PADDING_SLOT, PageOperations
    from kvfast.device.pools import KVPools, Layer
    from kvfast.device.prefix_index import Crossover, PrefixIndex
    from kvfast.device.resident import ResidentDecode, ResidentRun
    from kvfast.device.swap import Swapper, Transfer
    from kvfast.device.tables import DeviceStep, DeviceTables, TableDifference

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

_MODULES: Mapping[str, str] = {
    "PADDING_SLOT": "operations",
    "BlockHashes": "hashing",
    "Crossover": "prefix_index",
    "DeviceStep": "tables",
    "DeviceTables": "tables",
    "HostTier": "host_tier",
    "Ids": "_arguments",
    "KVPools": "pools",
    "Layer": "pools",
    "PageOperations": "operations",
    "PrefixIndex": "prefix_index",
    "ResidentDecode": "resident",
    "ResidentRun": "resident",
    "Swapper": "swap",
    "TableDifference": "tables",
    "Transfer": "swap",
    "hash_blocks": "hashing",
}
"""Where the names are that need torch."""


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("torch") is None:
        raise MissingDependencyError("torch", "kvspec[torch]", f"kvfast.device.{name}")
    return getattr(import_module(f"{__name__}.{module}"), name)
