"""A first KV-cache manager: a list of free blocks, and a dict from content to block."""

from __future__ import annotations

from typing import Any

from kvspec.base import BaseImplementation, BaseManager, BaseRequest
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig


class MyManager(BaseManager):
    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self.free_blocks = list(range(config.kv_cache.num_blocks))
        self.num_users = [0] * config.kv_cache.num_blocks
        self.tables: dict[str, list[int]] = {}
        self.cached: dict[tuple[int, ...], int] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_blocks)

    def get_blocks(self, request: BaseRequest) -> KVCacheBlocks:
        return KVCacheBlocks((tuple(self.tables.get(request.request_id, ())),))

    def content(self, request: BaseRequest, index: int) -> tuple[int, ...]:
        start = index * self.block_size
        return tuple(request.token_ids[start : start + self.block_size])

    def get_computed_blocks(self, request: BaseRequest) -> PrefixHit:
        if not self.config.enable_caching:
            return PrefixHit(KVCacheBlocks.empty(1), 0)
        hit = []
        for index in range(request.num_tokens // self.block_size):
            block = self.cached.get(self.content(request, index))
            if block is None:
                break
            hit.append(block)
        return PrefixHit(KVCacheBlocks((hit,)), len(hit) * self.block_size)

    def allocate_slots(
        self,
        request: BaseRequest,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        **lacking: Any,
    ) -> KVCacheBlocks | None:
        table = self.tables.setdefault(request.request_id, [])
        if new_computed_blocks is not None:
            for block in new_computed_blocks.groups[0]:
                self.num_users[block] += 1
                table.append(block)
        total = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        new: list[int] = []
        while len(table) * self.block_size < total:
            if not self.free_blocks:
                return None
            block = self.free_blocks.pop(0)
            self.num_users[block] = 1
            table.append(block)
            new.append(block)
        for index, block in enumerate(table):
            self.cached[self.content(request, index)] = block
        return KVCacheBlocks((new,))

    def free(self, request: BaseRequest) -> None:
        for block in self.tables.pop(request.request_id, []):
            self.num_users[block] -= 1
            if self.num_users[block] == 0:
                self.free_blocks.append(block)


class MyImplementation(BaseImplementation):
    name = "mymanager"
    manager_class = MyManager


def implementation() -> MyImplementation:
    return MyImplementation()
