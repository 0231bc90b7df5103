"""Blocks in host memory: swaps, and the second tier over them (KV-DEV-8, KV-TIER-*)."""

from __future__ import annotations

from kvfast.device.tier.host_tier import HostTier
from kvfast.device.tier.swap import Swapper, Transfer

__all__ = ["HostTier", "Swapper", "Transfer"]
