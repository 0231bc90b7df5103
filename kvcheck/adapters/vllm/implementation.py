"""vLLM as an `Implementation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from kvcheck.adapters.vllm.errors import NAME
from kvcheck.adapters.vllm.library import Library
from kvcheck.adapters.vllm.manager import VLLMManager
from kvcheck.adapters.vllm.specs import HASH_FUNCTIONS, LATER_SPEC_TYPES, SPEC_TYPES, check
from kvcheck.adapters.vllm.state import block_ids
from kvcheck.tools.bench.calls import Calls
from kvspec.audit import audited, unwrapped
from kvspec.base import BaseImplementation
from kvspec.config import ManagerConfig
from kvspec.editions import NEWEST
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.policy import Policy
from kvspec.request import Request, RequestInput, check_token_ids, token_list
from kvspec.stats import PrefixCacheStats

NAMES = """prefix_caching multiple_groups eagle context_parallel external_tokens delayed_caching
deferred_free partial_blocks retention events statistics cache_salt lora multimodal
prompt_embeddings skip_reading drafting admission eviction_by_id reset skipped_removal
hits_per_group unequal_hits common_prefix unhashed_blocks stable_lists need new_block_ids
snapshot"""
FEATURES = frozenset(map(Feature, NAMES.split()))
"""Not residency (its clock cannot be given), copies and restoring (vLLM has none), planning."""

LATER_FEATURES = FEATURES | {
    *(Feature.LATER_CHOICES, Feature.JUNCTIONS, Feature.IN_FLIGHT, Feature.HITS_INSIDE_BLOCKS),
    *(Feature.HASH_LOOKAHEAD, Feature.HIT_REPORTS),
}

LATER_VALUES = MappingProxyType(
    {"mamba_cache_mode": frozenset({"align"}), "context_parallel": frozenset({"decode"})}
)


class VLLMImplementation(BaseImplementation):
    """vLLM's managers. `keeps_uncached_prefix`: see `scheduler_view`."""

    name = NAME

    def __init__(self, library: Library, *, keeps_uncached_prefix: bool = False) -> None:
        self.library = library
        self.keeps_uncached_prefix = keeps_uncached_prefix

    @property
    def capabilities(self) -> Capabilities:
        is_later = self.library.is_later
        return Capabilities(
            name=NAME,
            version=self.library.version,
            spec_types=LATER_SPEC_TYPES if is_later else SPEC_TYPES,
            hash_functions=frozenset(HASH_FUNCTIONS),
            features=LATER_FEATURES if is_later else FEATURES,
            extra_key_forms=frozenset({self.library.policy.extra_keys}),
            values=LATER_VALUES if is_later else {},
            limits={} if is_later else {"extra_retained_tokens": 0},
            edition=NEWEST,
        )

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """Make a manager of vLLM's with a fresh pool. The clock is not used: nothing is timed."""
        if not isinstance(config, ManagerConfig):
            raise InvalidArgumentError("config", config, "a ManagerConfig")
        check(config, self.capabilities, self.library.policy)
        manager: Any = VLLMManager(
            self.library, config, keeps_uncached_prefix=self.keeps_uncached_prefix
        )
        return audited(manager) if check_invariants else manager

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        if request.reports_hits and not self.library.is_later:
            raise UnsupportedError(Feature.HIT_REPORTS, NAME)
        return _inner(manager).make_request(request)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        tokens = token_list(token_ids)
        check_token_ids(tokens)
        _inner(manager).append_tokens(request, tokens)

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        return VLLMHitRateWindow(self.library, max_requests)

    @property
    def bench_policy(self) -> Policy:
        return self.library.policy

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """Return vLLM's own calls, which `kvspec bench` times instead of this adapter's."""
        return native_calls(_inner(manager))


class VLLMHitRateWindow:
    def __init__(self, library: Library, max_requests: int) -> None:
        self._stats_class = library.stats.PrefixCacheStats
        self.inner = library.stats.CachingMetrics(max_requests)

    def observe(self, stats: PrefixCacheStats) -> None:
        members = {name.removesuffix("_tokens"): value for name, value in vars(stats).items()}
        self.inner.observe(self._stats_class(**members))

    @property
    def num_requests(self) -> int:
        return int(self.inner.aggregated_requests)

    @property
    def hit_rate(self) -> float:
        return float(self.inner.hit_rate)


def _inner(manager: KVCacheManager) -> VLLMManager:
    inner = unwrapped(manager)
    if not isinstance(inner, VLLMManager):
        raise InvalidArgumentError("manager", manager, "made by this implementation's create")
    return inner


def native_calls(manager: VLLMManager) -> Calls:
    """Bound methods of vLLM's manager; requests and hits stay vLLM's objects throughout."""
    library, inner = manager.library, manager.inner
    request_class = library.request.Request
    params = library.sampling.SamplingParams(max_tokens=1)
    hasher = manager.block_hasher

    def make_request(given: tuple[str, list[int]]) -> Any:
        return request_class(
            request_id=given[0],
            prompt_token_ids=given[1],
            sampling_params=params,
            pooling_params=None,
            block_hasher=hasher,
        )

    def allocate_with_hit(request: Any, num_new_tokens: int, hit: Any) -> Any:
        return inner.allocate_slots(request, num_new_tokens, hit[1], hit[0])

    return Calls(
        make_request=make_request,
        append_tokens=request_class.append_output_token_ids,
        look_up=inner.get_computed_blocks,
        allocate=inner.allocate_slots,
        allocate_with_hit=allocate_with_hit,
        free=inner.free,
        make_input=lambda request_id, token_ids: (request_id, token_ids),
        read_hashes=lambda request: list(map(bytes, request.block_hashes)),
        read_hit=lambda hit: (int(hit[1]), list(block_ids(hit[0].blocks[0]))),
        read_blocks=lambda answer: None if answer is None else list(block_ids(answer.blocks[0])),
        num_free_blocks=lambda: manager.num_free_blocks,
        new_step_starts=inner.new_step_starts,
        end_step=inner.take_new_block_ids,
        includes="vLLM's own Request and KVCacheManager, called directly: none of the adapter",
        # vLLM's hasher reads its first parent from a module.
        around=lambda: library.parent_hash(manager.none_hash),
    )
