"""A small KV-cache manager: a list of free blocks, and a dict from content to block."""

from __future__ import annotations

from typing import Any

from kvspec.base import BaseImplementation, BaseManager, BaseRequest
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import StaleHitError


class MyManager(BaseManager):
    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self.free_blocks = list(range(1, config.kv_cache.num_blocks))
        self.num_users = [0] * config.kv_cache.num_blocks
        self.tables: dict[str, list[int]] = {}
        self.cached: dict[tuple[int, ...], int] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_blocks)

    def get_blocks(self, request: BaseRequest) -> KVCacheBlocks:
        return KVCacheBlocks((tuple(self.tables.get(request.request_id, ())),))

    def content(self, request: BaseRequest, index: int) -> tuple[int, ...]:
        return tuple(request.token_ids[: (index + 1) * self.block_size])

    def get_computed_blocks(self, request: BaseRequest) -> PrefixHit:
        if not self.config.enable_caching:
            return PrefixHit(KVCacheBlocks.empty(1), 0)
        hit = []
        for index in range((request.num_tokens - 1) // self.block_size):
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
        hit = self.checked_hit(
            num_new_tokens, num_new_computed_tokens, new_computed_blocks, lacking
        )
        for index, block in enumerate(hit):
            if self.cached.get(self.content(request, index)) != block:
                raise StaleHitError(0, index, block)
        total = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        table = [*self.tables.get(request.request_id, []), *hit]
        num_new_blocks = max(-(-total // self.block_size) - len(table), 0)
        revived = [block for block in hit if self.num_users[block] == 0]
        if len(revived) + num_new_blocks > len(self.free_blocks):
            return None
        for block in revived:
            self.free_blocks.remove(block)
        new = [self.take() for _ in range(num_new_blocks)]
        for block in [*hit, *new]:
            self.num_users[block] += 1
        table += new
        self.tables[request.request_id] = table
        for index in range(min(total, request.num_tokens) // self.block_size):
            self.cached[self.content(request, index)] = table[index]
        return KVCacheBlocks((new,))

    def take(self) -> int:
        block = self.free_blocks.pop(0)
        self.cached = {key: found for key, found in self.cached.items() if found != block}
        return block

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
