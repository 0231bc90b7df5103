"""SGLang's pools and tree, call by call; the mapping is described in the package."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any

from kvcheck.adapters.sglang.engine import Engine, Options
from kvcheck.adapters.small import SmallManager, SmallRequest, owned
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.request import Request
from kvspec.tree import TreeConfig

MIN_REQUESTS = 256
"""Rows for requests that hold slots, at least; a further one is refused."""


class SGLangRequest(SmallRequest):
    """A `Req`."""

    @property
    def token_ids(self) -> Sequence[int]:
        return (*self.inner.origin_input_ids, *self.inner.output_ids)


class SGLangManager(SmallManager):
    """See `kvspec.interface.KVCacheManager` for what each call promises."""

    name = "sglang"
    request_class = SGLangRequest

    def __init__(self, config: ManagerConfig, core: str) -> None:
        super().__init__(config)
        num_slots = (config.kv_cache.num_blocks - 1) * self.block_size
        fitting = 2 * num_slots // config.max_model_len_tokens
        options = Options(
            core,
            is_caching=config.enable_caching,
            num_rows=max(MIN_REQUESTS, min(config.kv_cache.num_blocks, fitting)),
            max_tokens=config.max_model_len_tokens + self.block_size,
        )
        self.engine = Engine(TreeConfig(num_slots, self.block_size), options)
        self.m = self.engine.m
        self.rows, self.slots, self.tree = self.engine.rows, self.engine.slots, self.engine.tree

    @property
    def num_free_blocks(self) -> int:
        """Pages that are free, or in tree nodes without a lock."""
        slots = self.slots.available_size() + self.tree.evictable_size()
        return int(slots) // self.block_size

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix, and keep it on a waiting request for its admission."""
        own = owned(request, SGLangRequest)
        matched = own.inner
        with self.engine.active():
            if matched.kv.holds_kv:  # its row stays as it is
                matched = copy(matched)
                matched.kv = type(matched.kv)()
            matched.init_next_round_input(self.tree)
            hit = self._pages(self.tree.prefix_device_indices(matched))
            if matched is own.inner:
                own.last_hit = hit
        return PrefixHit(KVCacheBlocks((tuple(hit),)), int(matched.prefix_len))

    def last_match(self, own: SGLangRequest) -> list[int]:
        """Return the pages that were found for a waiting request."""
        return self._pages(self.tree.prefix_device_indices(own.inner))

    def grant(self, own: SGLangRequest, hit_tokens: int, end: int) -> bool:
        with self.engine.active():
            if not own.inner.kv.holds_kv:
                return self._admit(own, hit_tokens, end)
            if end <= own.num_prefill_tokens:
                return self._extend(own, end)
            return self._decode(own, end)

    def _admit(self, own: SGLangRequest, hit: int, end: int) -> bool:
        """Admit one request as the scheduler does, with its matched prefix locked."""
        req = own.inner
        if not hit:
            with self.m.environ.envs.SGLANG_RADIX_FORCE_MISS.override(True):
                req.init_next_round_input(self.tree)
        req.lock = self.tree.lock(req.last_node)
        if self.rows.available_size() == 0 or not self._extend(own, end):
            self.tree.unlock(req.lock)
            req.lock = None
            return False
        own.num_prefill_tokens = own.num_tokens
        return True

    def _extend(self, own: SGLangRequest, end: int) -> bool:
        """Allocate slots for a chunk of the prompt, and then make a checkpoint."""
        req, tensor = own.inner, self.m.torch.tensor
        before, after = tensor([req.prefix_len]), tensor([end])
        pages = self.m.utils.get_num_new_pages(
            seq_lens=after, page_size=self.block_size, prefix_lens=before
        )
        budget = self.slots.create_prefill_budget(self.tree)
        fits = budget.can_allocate_prefill(
            paged_input=pages * self.block_size,
            extend_input_len=end - req.prefix_len,
            max_new_tokens=0,
            chunk_limit=None,
        )
        if not fits:
            return False
        req.extend_end = end
        batch = self._batch(req, after)
        batch.prefix_lens, batch.extend_lens = [req.prefix_len], [end - req.prefix_len]
        batch.extend_num_tokens = end - req.prefix_len
        self.m.allocation.alloc_for_extend(batch)
        self.m.common.checkpoint_kv_cache(req, self.tree)
        return True

    def _decode(self, own: SGLangRequest, end: int) -> bool:
        """Allocate slots for generated tokens, as so many decode steps."""
        req, start = own.inner, own.inner.kv.kv_allocated_len
        pages = -(-end // self.block_size) - -(-start // self.block_size)
        if not self.slots.check_decode_capacity(
            num_tokens=pages * self.block_size, tree_cache=self.tree
        ):
            return False
        for length in range(start, end):
            batch = self._batch(req, self.m.torch.tensor([length]))
            self.m.allocation.alloc_for_decode(batch, 1)
        return True

    def _batch(self, req: Any, lengths: Any) -> SimpleNamespace:
        """Make a `ScheduleBatch` of one request with the members that allocation reads."""
        row = self.m.torch.tensor([req.kv.req_pool_idx or 0])
        return SimpleNamespace(
            reqs=[req],
            device="cpu",
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            req_pool_indices=row,
            req_pool_indices_cpu=row,
            req_to_token_pool=self.rows,
            tree_cache=self.tree,
            hisparse_coordinator=None,
            model_config=SimpleNamespace(is_encoder_decoder=False),
            maybe_evict_swa=lambda: None,
            is_dllm=lambda: False,
        )

    def free(self, request: Request) -> None:
        own = owned(request, SGLangRequest)
        if not own.inner.kv.holds_kv:
            return
        with self.engine.active():
            self.m.common.release_kv_cache(own.inner, self.tree, checkpoint=True)
            own.inner.reset_for_retract()
        own.last_hit = []

    def reset_prefix_cache(self) -> bool:
        """Empty the tree and the pools, unless a request holds slots."""
        if self.rows.available_size() != self.rows.size:
            return False
        with self.engine.active():
            self.tree.reset()
            self.rows.clear()
            self.slots.clear()
        return True

    def held(self, own: SGLangRequest) -> list[int]:
        kv = own.inner.kv
        if not kv.holds_kv:
            return []
        return self._pages(self.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len])

    def _pages(self, slots: Any) -> list[int]:
        """Return the page of each `block_size` slots."""
        return [int(slot) // self.block_size for slot in slots[:: self.block_size]]
