"""Block hashes of many prompts at once (KV-DEV-18)."""

from __future__ import annotations

from kvfast.device.hashing.blocks import BlockHashes, hash_blocks

__all__ = ["BlockHashes", "hash_blocks"]
