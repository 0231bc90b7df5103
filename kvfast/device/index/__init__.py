"""Find how much of each waiting prompt is cached (KV-DEV-19, KV-DEV-20)."""

from __future__ import annotations

from kvfast.device.index.prefix_index import Crossover, PrefixIndex

__all__ = ["Crossover", "PrefixIndex"]
