"""nano-vllm's block manager, call by call; the mapping is described in the package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvcheck.adapters.nanovllm.library import Library
from kvcheck.adapters.small import SmallManager, SmallRequest, owned
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature
from kvspec.request import Request, RequestInput


class NanoRequest(SmallRequest):
    """A `Sequence`. Its class keeps the block size, so the requests of a manager have their own."""

    def __init__(
        self, given: RequestInput, sequence_class: type[Any], tokens: list[int], block_size: int
    ) -> None:
        sized = type("Sequence", (sequence_class,), {"block_size": block_size})
        super().__init__(given, sized(tokens))

    @property
    def token_ids(self) -> Sequence[int]:
        return tuple(self.inner.token_ids)


class NanoManager(SmallManager):
    """See `kvspec.interface.KVCacheManager` for what each call promises."""

    name = "nano-vllm"
    request_class = NanoRequest

    def __init__(self, library: Library, config: ManagerConfig) -> None:
        super().__init__(config)
        num_blocks = config.kv_cache.num_blocks - 1
        self.inner = library.block_manager.BlockManager(num_blocks, self.block_size)

    @property
    def num_free_blocks(self) -> int:
        """Length of the free list, which includes unused cached blocks."""
        return len(self.inner.free_block_ids)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix if the request fits now."""
        own = owned(request, NanoRequest)
        length = max(self.inner.can_allocate(own.inner), 0)
        own.last_hit = [block + 1 for block in self._cached_blocks(own.inner, length)]
        return PrefixHit(KVCacheBlocks((tuple(own.last_hit),)), length * self.block_size)

    def _cached_blocks(self, sequence: Any, length: int) -> Iterator[int]:
        """Yield the blocks that `allocate` will look up again."""
        block_hash = -1
        for index in range(length):
            block_hash = self.inner.compute_hash(sequence.block(index), block_hash)
            yield self.inner.hash_to_block_id[block_hash]

    def held(self, own: NanoRequest) -> tuple[int, ...]:
        """Return ids of the contract, where 0 is null."""
        return tuple(block + 1 for block in own.inner.block_table)

    def grant(self, own: NanoRequest, hit_tokens: int, end: int) -> bool:
        hit = hit_tokens // self.block_size
        if not (self._extend(own, end) if own.inner.block_table else self._admit(own, hit)):
            return False
        own.inner.num_scheduled_tokens = end - own.inner.num_cached_tokens
        if self.config.enable_caching:
            self.inner.hash_blocks(own.inner)
        own.inner.num_cached_tokens = end
        own.inner.num_scheduled_tokens = 0
        return True

    def _admit(self, own: NanoRequest, num_cached_blocks: int) -> bool:
        fits: bool = self.inner.can_allocate(own.inner) >= 0
        if not num_cached_blocks:
            # can_allocate counts on its own hit, which is not used here.
            fits = own.inner.num_blocks <= self.num_free_blocks
        if fits:
            self.inner.allocate(own.inner, num_cached_blocks)
            own.num_prefill_tokens = own.num_tokens
        return fits

    def _extend(self, own: NanoRequest, end: int) -> bool:
        """Allocate a block for a generated token if the last one is full."""
        if end <= own.num_prefill_tokens:
            return True  # admission took the blocks of the whole prompt
        if end - own.inner.num_cached_tokens > 1:  # it adds a block at most
            raise UnsupportedError(Feature.DRAFTING, self.name)
        if not self.inner.can_append(own.inner):
            return False
        self.inner.may_append(own.inner)
        return True

    def free(self, request: Request) -> None:
        self.inner.deallocate(owned(request, NanoRequest).inner)
