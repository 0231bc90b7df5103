"""kvref's groups and their manager, bounded, as Groups.tla describes them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from kvref.block_pool import BlockPool
from kvref.manager import ReferenceManager
from kvref.request import ReferenceRequest, make_request
from kvref.state import restore_snapshot
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from proofs.models._formal._constants import constants_of
from proofs.models._formal._pool import pool_value

Text = tuple[int, ...]


def texts(num_tokens: int, shortest: int, longest: int) -> list[Text]:
    """Return all texts of these lengths over the tokens 0 … num_tokens - 1."""
    lengths = range(shortest, longest + 1)
    return [text for n in lengths for text in product(range(num_tokens), repeat=n)]


@dataclass(frozen=True)
class CacheBounds:
    """Bounds that GroupsModel and Manager share. `num_blocks` counts the null block.

    `windows`: one for each group, 0 for full attention. `eagle_groups` counts from 0. `made_by`: a
    kvref with a mistake.
    """

    num_blocks: int
    num_requests: int = 2
    windows: tuple[int, ...] = (0,)
    block_sizes: tuple[int, ...] = (1,)
    eagle_groups: frozenset[int] = frozenset()
    retention: int | None = None
    num_tokens: int = 2
    max_tokens: int = 2
    pool_class: type[BlockPool] = BlockPool
    made_by: Implementation | None = None

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of the TLA+ module."""
        return {**constants_of(self.config(), self.num_requests), "NumTokens": self.num_tokens}

    def specs(self) -> list[LayerSpec]:
        """Return the specs of the groups."""
        return [
            SlidingWindowSpec(size, 1, 8, "float16", sliding_window=window)
            if window
            else FullAttentionSpec(size, 1, 8, "float16")
            for window, size in zip(self.windows, self.block_sizes, strict=True)
        ]

    def config(self) -> ManagerConfig:
        """Return the configuration with these groups."""
        groups = tuple(
            KVCacheGroup((f"layer.{number}",), spec, number in self.eagle_groups)
            for number, spec in enumerate(self.specs())
        )
        return ManagerConfig(
            KVCacheConfig(self.num_blocks, groups),
            max_model_len_tokens=self.max_tokens,
            retention_interval_tokens=self.retention,
            hash_seed="0",
        )

    def names(self) -> list[str]:
        return [f"r{number}" for number in range(self.num_requests)]

    def manager(self) -> ReferenceManager:
        """Create a manager."""
        if self.made_by is not None:
            return cast(ReferenceManager, self.made_by.create(self.config()))
        return ReferenceManager(self.config(), pool_class=self.pool_class)

    def contents(self) -> dict[bytes, Text]:
        """Map each key to its group, from 1 on, and all tokens up to its end."""
        one = OneManager(self)
        size = one.manager.config.hash_block_size_tokens or 1
        found = {}
        for text in texts(self.num_tokens, self.max_tokens, self.max_tokens):
            for number, block_hash in enumerate(one.request("r", text).block_hashes):
                for group in range(len(self.specs())):
                    tokens = text[: (number + 1) * size]
                    found[block_hash + group.to_bytes(4, "big")] = (group + 1, *tokens)
        return found


def cache_value(
    bounds: CacheBounds, snapshot: Snapshot, contents: dict[bytes, Text]
) -> dict[str, Any]:
    """Return a cache as Groups.tla describes it."""
    nothing = tuple(() for _ in bounds.specs())
    lists, counts = [], []
    for name in bounds.names():
        held = snapshot.requests.get(name)
        lists.append(nothing if held is None else held.block_ids)
        entries = [None] * len(nothing) if held is None else held.num_cached_blocks
        counts.append(tuple(-1 if count is None else count for count in entries))
    return {
        "pool": pool_value(
            snapshot.free_queue,
            snapshot.ref_counts,
            snapshot.block_keys,
            snapshot.lookup_order,
            contents,
        ),
        "lists": tuple(lists),
        "counts": tuple(counts),
    }


class OneManager:
    """A manager of kvref that is put into one state after the other, and its requests."""

    def __init__(self, bounds: CacheBounds) -> None:
        self.bounds = bounds
        self.manager = bounds.manager()
        self.made: dict[tuple[str, Text], ReferenceRequest] = {}

    def request(self, name: str, text: Text) -> ReferenceRequest:
        """Return the request with this content, made once."""
        if (name, text) not in self.made:
            self.made[name, text] = self._make(RequestInput(name, text))
        return self.made[name, text]

    def _make(self, given: RequestInput) -> ReferenceRequest:
        if self.bounds.made_by is not None:
            return cast(ReferenceRequest, self.bounds.made_by.make_request(self.manager, given))
        size = self.manager.config.hash_block_size_tokens or 0
        return make_request(given, self.manager.hasher, size)

    def restored(self, snapshot: Snapshot) -> ReferenceManager:
        """Return the manager in this state."""
        manager = self.manager
        for group in manager.groups:
            group.block_lists.clear()
            group.num_cached.clear()
        manager.popped.clear()
        restore_snapshot(snapshot, manager.pool, manager.groups, manager.popped)
        return manager
