"""The memory of the cache, and what writes, reads, copies and zeroes it (KV-DEV-1 … KV-DEV-7)."""

from __future__ import annotations

from kvfast.device.pages.arguments import Ids
from kvfast.device.pages.operations import PADDING_SLOT, PageOperations
from kvfast.device.pages.pools import KVPools, Layer

__all__ = ["PADDING_SLOT", "Ids", "KVPools", "Layer", "PageOperations"]
