"""Base classes for authors: they refuse, as the contract demands, all that a small manager lacks.

    class MyManager(BaseManager):
        ...  # num_free_blocks, get_computed_blocks, allocate_slots, free, get_blocks

    class MyImplementation(BaseImplementation):
        name = "mymanager"
        manager_class = MyManager

That is an `Implementation` for one full-attention group with prefix caching. Each further feature
is a method in the manager and a name in `features`. docs/implement-your-own.md shows the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, cast

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.domains import int_at_least, is_int
from kvspec.editions import FIRST
from kvspec.errors import InvalidArgumentError, UnknownBlockError, UnsupportedError
from kvspec.events import Event
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.planning import Planner
from kvspec.request import Request, RequestInput, RequestStatus, check_token_ids
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec, LayerSpec
from kvspec.stats import PrefixCacheStats, ResidencySample

MEANINGLESS = frozenset({"has_scheduled_reqs", "num_encoder_tokens"})
"""Options of `allocate_slots` without effect on full attention without a watermark."""

FEATURE_OF_CONTENT: Mapping[str, Feature] = {
    "cache_salt": Feature.CACHE_SALT,
    "lora": Feature.LORA,
    "multimodal": Feature.MULTIMODAL,
    "prompt_embeddings": Feature.PROMPT_EMBEDDINGS,
    "skip_reading_cache": Feature.SKIP_READING,
    "reports_hits": Feature.HIT_REPORTS,
    "priority": Feature.EVICTION_ORDERS,
}
"""Members of a request that need a feature if they are set."""


class BaseRequest:
    """A request: its tokens, and what the scheduler sets before each call (KV-REQ-1).

    `input` is what it was made from. It has no hashes: a manager that uses the contract's hashes
    makes its own requests.
    """

    block_hashes: Sequence[bytes] = ()

    def __init__(self, given: RequestInput) -> None:
        self.input = given
        self.token_ids = list(given.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.junction_tokens = 0
        self.num_in_flight_tokens = 0

    @property
    def request_id(self) -> str:
        """The name under which a manager keeps the request's blocks."""
        return self.input.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class BaseManager:
    """The calls that are the same in every small manager; other calls raise UnsupportedError.

    A subclass implements the methods that raise NotImplementedError here, as documented in
    `kvspec.interface.KVCacheManager`. `block_size`: tokens of a block.
    """

    none_hash = b""

    def __init__(self, config: ManagerConfig) -> None:
        self.block_size: int = config.kv_cache.groups[0].spec.block_size
        self.config = replace(
            config,
            scheduler_block_size_tokens=self.block_size,
            hash_block_size_tokens=self.block_size,
        )

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation could take, cached ones included."""
        raise NotImplementedError

    def get_computed_blocks(self, request: Any) -> PrefixHit:
        """Return the longest cached prefix of the request."""
        raise NotImplementedError

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        **lacking: Any,
    ) -> KVCacheBlocks | None:
        """Return blocks for tokens about to be computed, or None; `lacking`: other options."""
        raise NotImplementedError

    def free(self, request: Any) -> None:
        """Release all blocks of the request."""
        raise NotImplementedError

    def get_blocks(self, request: Any) -> KVCacheBlocks:
        """Return the request's blocks."""
        raise NotImplementedError

    @property
    def usage(self) -> float:
        """The share of blocks in use, the null block left out (KV-POOL-12)."""
        usable = self.config.kv_cache.num_blocks - 1
        return 1.0 - self.num_free_blocks / usable if usable else 0.0

    def checked_hit(
        self,
        num_new_tokens: int,
        num_new_computed_tokens: int,
        new_computed_blocks: KVCacheBlocks | None,
        lacking: Mapping[str, Any],
    ) -> list[int]:
        """Return the blocks of the hit if these arguments of `allocate_slots` are legal.

        Raises InvalidArgumentError (KV-MGR-3, KV-MGR-8), UnknownBlockError (KV-ERR-3), and
        UnsupportedError for a feature's option. Only the manager can tell whether the blocks still
        hold the request's tokens.
        """
        int_at_least("num_new_tokens", num_new_tokens, 1, error=InvalidArgumentError)
        for option, value in lacking.items():
            if value and option not in MEANINGLESS:
                raise UnsupportedError(option, type(self).__name__)
        blocks = [] if new_computed_blocks is None else list(new_computed_blocks.groups[0])
        for block in blocks:
            if not is_int(block) or not 0 <= block < self.config.kv_cache.num_blocks:
                raise UnknownBlockError(block, self.config.kv_cache.num_blocks)
        if num_new_computed_tokens != len(blocks) * self.block_size:
            allowed = f"{self.block_size} for each of the {len(blocks)} blocks of the hit"
            raise InvalidArgumentError("num_new_computed_tokens", num_new_computed_tokens, allowed)
        return blocks

    def take_events(self) -> tuple[Event, ...]:
        """Return no events, without Feature.EVENTS."""
        return ()

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return None, without Feature.STATISTICS."""
        return None

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Return no samples, without Feature.RESIDENCY."""
        return ()

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property that failed inside: let it say so itself
            return object.__getattribute__(self, name)
        if hasattr(KVCacheManager, name):
            raise UnsupportedError(name, type(self).__name__)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class BaseImplementation:
    """An `Implementation` with one full-attention group, by default with prefix caching.

    A subclass sets `name`, `manager_class`, and whatever else differs. Without `hash_functions`
    only its safety can be checked (`Capabilities`).
    """

    name: ClassVar[str] = "unnamed"
    version: ClassVar[str] = "0"
    manager_class: ClassVar[type[BaseManager]] = BaseManager
    spec_types: ClassVar[frozenset[type[LayerSpec]]] = frozenset({FullAttentionSpec})
    hash_functions: ClassVar[frozenset[str]] = frozenset()
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.PREFIX_CACHING})
    values: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})
    limits: ClassVar[Mapping[str, int]] = MappingProxyType({})
    edition: ClassVar[str] = FIRST

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that the class attributes declare."""
        return Capabilities(
            self.name,
            self.version,
            self.spec_types,
            self.hash_functions,
            self.features,
            values=self.values,
            limits=self.limits,
            edition=self.edition,
        )

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """Make a manager; UnsupportedError if the configuration needs more. It is not audited."""
        # Late: what a configuration needs is worked out beside the checks.
        from kvspec.requirements import lacking

        lacks = lacking(config, self.capabilities, hashes_matter=False)
        if lacks:
            raise UnsupportedError(", ".join(lacks), self.name)
        return self.make_manager(config)

    def make_manager(self, config: ManagerConfig) -> KVCacheManager:
        """Make a manager of `manager_class`; the configuration needs nothing that is lacking."""
        return cast(KVCacheManager, self.manager_class(config))

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a BaseRequest; UnsupportedError for content that needs a missing feature."""
        if not isinstance(request, RequestInput):
            raise InvalidArgumentError("request", request, "a RequestInput")
        for member, feature in FEATURE_OF_CONTENT.items():
            if getattr(request, member) and feature not in self.features:
                raise UnsupportedError(feature, self.name)
        check_token_ids(list(request.prompt_token_ids), field="prompt_token_ids")
        return BaseRequest(request)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """Append generated tokens to the request."""
        if not isinstance(request, BaseRequest):
            raise InvalidArgumentError("request", request, "made by this implementation")
        check_token_ids(token_ids)
        request.token_ids.extend(token_ids)

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        """Raise UnsupportedError, without Feature.STATISTICS."""
        raise UnsupportedError(Feature.STATISTICS, self.name)

    @property
    def planner(self) -> Planner | None:
        """None, without Feature.PLANNING."""
        return None

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Raise UnsupportedError, without Feature.CLONE."""
        raise UnsupportedError(Feature.CLONE, self.name)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """Raise UnsupportedError, without Feature.RESTORE."""
        raise UnsupportedError(Feature.RESTORE, self.name)
