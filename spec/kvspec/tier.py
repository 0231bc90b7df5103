"""A second tier of the cache in host memory: which content it keeps, where, and for how long.

The tier is bookkeeping only (KV-TIER-*): it returns the blocks to copy, and the engine copies them.
`TieredImplementation.make_tier` makes one for a manager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from kvspec.blocks import KVCacheBlocks
from kvspec.interface import KVCacheManager
from kvspec.request import Request

Key: TypeAlias = tuple[int, bytes]
"""Group number and block hash."""

Copies: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs (source block, destination block), all to be made before the step computes."""


@dataclass(frozen=True)
class TierSnapshot:
    """The whole state.

    - `device`: device block → key of its content, as far as known.
    - `host`: (key, host block), the oldest first.
    - `free`: host blocks without content, ascending.
    - `held`: request id → the keys it holds, in the order of their copies.
    """

    device: Mapping[int, Key]
    host: tuple[tuple[Key, int], ...]
    free: tuple[int, ...]
    held: Mapping[str, tuple[Key, ...]]


class Tier(Protocol):
    """Calls in the order of an engine's step; errors leave the state as it was (KV-TIER-8)."""

    def lookup(self, request: Request, num_local_tokens: int) -> int:
        """Return the tokens that the host can load beyond the device's hit (KV-TIER-4)."""

    def hold(self, request: Request, num_local_tokens: int, num_external_tokens: int) -> None:
        """Keep what these tokens need until `load` or `drop` (KV-TIER-5)."""

    def drop(self, request: Request) -> None:
        """Give up a hold: the allocation was refused. Nothing for a request that holds nothing."""

    def taken(self, blocks: Sequence[int]) -> Copies:
        """Note newly allocated device blocks; returns copies (device, host) to make (KV-TIER-2)."""

    def load(self, request: Request, blocks: KVCacheBlocks) -> Copies:
        """Return copies (host, device) of held tokens into the request's `blocks` (KV-TIER-6)."""

    def computed(self, request: Request, group: int, first: int, blocks: Sequence[int]) -> None:
        """Note that entries `first` … of the list are full of final tokens (KV-TIER-1)."""

    def forget(self, blocks: Sequence[int]) -> None:
        """Drop the wrong content of these device blocks, here and in the tier (KV-TIER-7)."""

    def reset(self) -> None:
        """Drop everything (KV-TIER-7)."""

    def snapshot(self) -> TierSnapshot:
        """Return the state, for comparison."""


@runtime_checkable
class TieredImplementation(Protocol):
    """The additional method of an implementation that has a host tier."""

    def make_tier(self, manager: KVCacheManager, num_blocks: int) -> Tier:
        """Make an empty tier of `num_blocks` host blocks, including the null block, for this
        manager.

        UnsupportedError for groups that it can't serve (KV-TIER-8); InvalidArgumentError for a
        number below 1 or a manager made elsewhere.
        """
