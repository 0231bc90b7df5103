"""kvref behind a declaration: what it does not declare it refuses, as the protocol says it must.

The table here is written from `spec/protocol.md`, apart from the suite's own tables: what the suite
asks beyond a declaration ends in an UnsupportedError, which the suite reports as a broken rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import kvref
from kvcheck.watch.forwarding import ForwardingImplementation
from kvspec.audit import Wrapper
from kvspec.batched import BatchedManager
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.following import FollowedInput
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.planning import Planner
from kvspec.request import Request, RequestInput
from kvspec.requirements import lacking
from kvspec.sequential import SequentialManager
from kvspec.snapshot import Snapshot

FEATURE_OF_CALL: Mapping[str, Feature] = {
    "find_longest_cache_hit_per_group": Feature.HITS_PER_GROUP,
    "cache_blocks": Feature.DELAYED_CACHING,
    "pop_blocks_for_free": Feature.DEFERRED_FREE,
    "free_blocks": Feature.DEFERRED_FREE,
    "hold_blocks": Feature.HOLDING,
    "get_block": Feature.BLOCK_FACTS,
    "remove_skipped_blocks": Feature.SKIPPED_REMOVAL,
    "cache_partial_block": Feature.PARTIAL_BLOCKS,
    "evict_blocks": Feature.EVICTION_BY_ID,
    "withdraw": Feature.WITHDRAWAL,
    "reset_prefix_cache": Feature.RESET,
    "get_num_common_prefix_blocks": Feature.COMMON_PREFIX,
    "get_num_blocks_to_allocate": Feature.NEED,
    "take_new_block_ids": Feature.NEW_BLOCK_IDS,
    "get_unhashed_block_ids": Feature.UNHASHED_BLOCKS,
    "snapshot": Feature.SNAPSHOT,
}
FEATURE_OF_ARGUMENT: Mapping[str, Feature] = {
    "num_external_computed_tokens": Feature.EXTERNAL_TOKENS,
    "delay_cache_blocks": Feature.DELAYED_CACHING,
    "num_lookahead_tokens": Feature.DRAFTING,
    "full_sequence_must_fit": Feature.ADMISSION,
    "reserved_blocks": Feature.ADMISSION,
}
FEATURE_OF_CONTENT: Mapping[str, Feature] = {
    "cache_salt": Feature.CACHE_SALT,
    "lora": Feature.LORA,
    "multimodal": Feature.MULTIMODAL,
    "prompt_embeddings": Feature.PROMPT_EMBEDDINGS,
    "skip_reading_cache": Feature.SKIP_READING,
    "reports_hits": Feature.HIT_REPORTS,
    "priority": Feature.EVICTION_ORDERS,
}


class DeclaredManager(Wrapper):
    def __init__(self, inner: KVCacheManager, can: Capabilities) -> None:
        self.inner = inner
        self.can = can

    def __getattr__(self, name: str) -> Any:
        feature = FEATURE_OF_CALL.get(name)
        if feature is not None:
            self.need(feature)
        return getattr(self.inner, name)

    def need(self, feature: Feature) -> None:
        if feature not in self.can.features:
            raise UnsupportedError(feature, self.can.name)

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **options: Any
    ) -> KVCacheBlocks | None:
        for name, feature in FEATURE_OF_ARGUMENT.items():
            if options.get(name):
                self.need(feature)
        if not hasattr(request, "num_tokens"):  # no request at all, which is illegal
            return self.inner.allocate_slots(request, num_new_tokens, **options)
        ends = (request.num_computed_tokens, options.get("num_new_computed_tokens", 0))
        counts = (*ends, num_new_tokens)
        is_drafting = all(type(n) is int for n in counts) and sum(counts) > request.num_tokens
        if is_drafting and Feature.DRAFTING not in self.can.features:
            copy = kvref.implementation().clone(self.inner)
            copy.allocate_slots(request, num_new_tokens, **options)  # what is illegal comes first
            self.need(Feature.DRAFTING)
        return self.inner.allocate_slots(request, num_new_tokens, **options)


class Declared(ForwardingImplementation):
    inner: kvref.ReferenceImplementation

    def __init__(self, can: Capabilities) -> None:
        super().__init__(kvref.implementation())
        self.capabilities = can

    def need(self, feature: Feature) -> None:
        if feature not in self.capabilities.features:
            raise UnsupportedError(feature, self.capabilities.name)

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        can = self.capabilities
        if not isinstance(config, ManagerConfig):  # what is illegal comes first
            kvref.implementation().create(config)
        lacks = lacking(config, can, hashes_matter=bool(can.hash_functions))
        if not can.hash_functions and config.hash_function != ManagerConfig.hash_function:
            lacks.append(config.hash_function)
        if lacks:
            raise UnsupportedError(", ".join(lacks), self.capabilities.name)
        if config.registry.custom:
            self.need(Feature.CUSTOM_SPECS)
        return self._declared(self.inner.create(config, **options))

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        for name, feature in FEATURE_OF_CONTENT.items():
            if getattr(request, name, None):
                self.need(feature)
        return super().make_request(manager, request)

    def make_followed(self, manager: KVCacheManager, given: FollowedInput) -> Request:
        self.need(Feature.GIVEN_HASHES)
        return self.inner.make_followed(manager, given)

    def follow(self, *told: Any, **options: Any) -> None:
        self.need(Feature.GIVEN_HASHES)
        self.inner.follow(*told, **options)

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        self.need(Feature.STATISTICS)
        return self.inner.make_hit_rate_window(max_requests)

    @property
    def planner(self) -> Planner | None:
        return self.inner.planner if Feature.PLANNING in self.capabilities.features else None

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        self.need(Feature.CLONE)
        return self._declared(super().clone(manager))

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        self.need(Feature.RESTORE)
        return self._declared(self.inner.restore(config, snapshot))

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        self.need(Feature.BATCHED)
        return SequentialManager(self, manager)

    def _declared(self, inner: KVCacheManager) -> KVCacheManager:
        return cast(KVCacheManager, DeclaredManager(inner, self.capabilities))
