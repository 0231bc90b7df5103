"""Hybrids in which exactly some positions of one text are cached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.specs import LayerSpec
from tests.rules.builders import MakeManager, MakeRequest, full
from tests.rules.specs import cached_positions, keep_cached, lists_of, mamba, sliding


@dataclass(frozen=True)
class Cached:
    """A manager in which exactly the given positions of one text of 60 tokens are cached."""

    manager: KVCacheManager
    request: Request
    lists: list[list[int]]

    def hit(self) -> PrefixHit:
        """The hit of the same text; L = 59."""
        return self.manager.get_computed_blocks(self.request)

    def expected(self, length: int, kept: Sequence[Collection[int]]) -> PrefixHit:
        """A hit of this length that answers, per group, the blocks of these positions."""
        blocks = tuple(
            tuple(
                listed[i] if i in positions else 0 for i in range(length // group.spec.block_size)
            )
            for listed, positions, group in zip(
                self.lists, kept, self.manager.config.kv_cache.groups, strict=True
            )
        )
        uncached = self.hit().uncached_common_prefix_tokens  # asserted by itself
        return PrefixHit(KVCacheBlocks(blocks), length, uncached)


def build_cache(
    make_manager: MakeManager,
    make_request: MakeRequest,
    specs: Sequence[LayerSpec],
    positions: Sequence[set[int]],
    **config: Any,
) -> Cached:
    """A manager in which these positions are cached, and no others."""
    manager = make_manager(150, specs=specs, **config)
    request = make_request(manager, "first", range(60))
    assert manager.allocate_slots(request, 60) is not None
    for group, kept in enumerate(positions):
        keep_cached(manager, request, kept, group)
        assert set(cached_positions(manager, request, group)) == kept
    return Cached(manager, request, lists_of(manager, request))


Cache: TypeAlias = Callable[..., Cached]


def first(n: int) -> set[int]:
    """Positions 0 … n - 1."""
    return set(range(n))


THREE_KINDS: tuple[LayerSpec, ...] = (full(4), sliding(4, 6), mamba(8))
THREE_CACHED = (first(14), {2, 3, 4, 5, 6, 7, 10, 11}, {0, 1, 2, 3, 4, 6})
