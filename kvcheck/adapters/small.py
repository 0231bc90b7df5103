"""The base of adapters for small managers: one group, no snapshot, few options.

A small manager allocates, looks up, extends and frees. It is judged from outside, by its block
lists and its number of free blocks (docs/decisions/0022-what-a-small-manager-must-show.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from kvspec._check import is_int
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.editions import NEWEST
from kvspec.errors import InvalidArgumentError, StaleHitError, UnsupportedError
from kvspec.events import Event
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.planning import Planner
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec
from kvspec.stats import ResidencySample


class SmallRequest:
    """The scheduler's side of a request; `inner` is the other project's own request."""

    def __init__(self, given: RequestInput, inner: Any) -> None:
        self.request_id = given.request_id
        self.num_prompt_tokens = len(given.prompt_token_ids)
        self.inner = inner
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.block_hashes: tuple[bytes, ...] = ()

    @property
    def token_ids(self) -> Sequence[int]:
        """All finalised tokens."""
        raise NotImplementedError

    @property
    def num_tokens(self) -> int:
        """Number of prompt and generated tokens."""
        return len(self.token_ids)


class SmallManager:
    """The calls of `KVCacheManager` that are the same for every small manager.

    A subclass has `num_free_blocks`, `get_computed_blocks`, `allocate_slots`, `free` and
    `get_blocks`. All other calls raise UnsupportedError.
    """

    name = "small"
    none_hash = b""

    def __init__(self, config: ManagerConfig) -> None:
        self.config = config
        self.block_size: int = config.kv_cache.groups[0].spec.block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation could take now, cached ones included."""
        raise NotImplementedError

    @property
    def usage(self) -> float:
        """Share of the pool in use."""
        usable = self.config.kv_cache.num_blocks - 1
        return 1.0 - self.num_free_blocks / usable if usable else 0.0

    def take_events(self) -> tuple[Event, ...]:
        """Return no events: a configuration with events is refused."""
        return ()

    def make_prefix_cache_stats(self) -> None:
        """Return None: a configuration with statistics is refused."""

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Return no samples: a configuration that samples is refused."""
        return ()

    def __getattr__(self, call: str) -> Any:
        raise UnsupportedError(call, self.name)

    def checked_tokens(self, request: SmallRequest, num_new_tokens: int, hit_tokens: int) -> int:
        """Return the end of the tokens to be computed, if the request has them."""
        start = request.num_computed_tokens + hit_tokens
        left = request.num_tokens - start
        if not is_int(num_new_tokens) or not 1 <= num_new_tokens <= left:
            raise InvalidArgumentError("num_new_tokens", num_new_tokens, f"an int in 1 … {left}")
        return start + num_new_tokens

    def checked_hit(
        self, given: KVCacheBlocks | None, hit_tokens: int, last_answer: Sequence[int]
    ) -> int:
        """Return the number of hit tokens, if the hit is the result of the look-up just before.

        These managers keep a hit on the request and do not take it as blocks, so any other hit is
        refused.
        """
        blocks = [] if given is None else list(given.groups[0])
        for index, block in enumerate(blocks):
            if index >= len(last_answer) or block != last_answer[index]:
                raise StaleHitError(0, index, block)
        if hit_tokens != len(blocks) * self.block_size or len(blocks) not in (0, len(last_answer)):
            raise InvalidArgumentError(
                "num_new_computed_tokens", hit_tokens, "the length of the last look-up's hit"
            )
        return hit_tokens


IGNORED = frozenset({"num_encoder_tokens", "has_scheduled_reqs"})
"""Options that mean nothing to one full-attention group without a watermark."""


def refuse_what_is_lacking(options: Mapping[str, Any], name: str) -> None:
    """Raise UnsupportedError for options of `allocate_slots` that ask for more than the base."""
    for option, value in options.items():
        if value and option not in IGNORED:
            raise UnsupportedError(option, name)


class SmallImplementation:
    """`Implementation` for one full-attention group, seen from outside."""

    name = "small"
    version = ""
    features: frozenset[Feature] = frozenset({Feature.PREFIX_CACHING})
    min_block_size_tokens = 1

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities without a hash function: only safety can be checked."""
        return Capabilities(
            name=self.name,
            version=self.version,
            spec_types=frozenset({FullAttentionSpec}),
            hash_functions=frozenset(),
            features=self.features,
            min_block_size_tokens=self.min_block_size_tokens,
            edition=NEWEST,
        )

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """Make a manager with a fresh pool. It is not audited, because it has no snapshot."""
        groups = config.kv_cache.groups
        lacking = {
            "several groups": len(groups) != 1,
            "other groups than full attention": type(groups[0].spec) is not FullAttentionSpec
            if groups
            else True,
            "events": config.enable_events,
            "statistics": config.log_stats,
            "residency samples": config.residency_sample_rate > 0,
            "eagle": config.use_eagle or any(group.is_eagle_group for group in groups),
            "context parallelism": config.dcp_world_size * config.pcp_world_size > 1,
            "retention": config.retention_interval_tokens is not None,
            "a watermark": config.watermark > 0,
        }
        for what, is_wanted in lacking.items():
            if is_wanted:
                raise UnsupportedError(what, self.name)
        size = groups[0].spec.block_size
        if size < self.min_block_size_tokens:
            raise UnsupportedError(f"blocks of {size}", self.name)
        config = replace(config, scheduler_block_size_tokens=size, hash_block_size_tokens=size)
        return cast(KVCacheManager, self.make_manager(config))

    def make_manager(self, config: ManagerConfig) -> SmallManager:
        """Make the other project's manager with the contract's calls."""
        raise NotImplementedError

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make the other project's request with this content."""
        raise NotImplementedError

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        raise NotImplementedError

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        """Raise UnsupportedError."""
        raise UnsupportedError(Feature.STATISTICS.value, self.name)

    @property
    def planner(self) -> Planner | None:
        """None: there is no planner."""
        return None

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Raise UnsupportedError."""
        raise UnsupportedError(Feature.CLONE.value, self.name)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """Raise UnsupportedError."""
        raise UnsupportedError(Feature.RESTORE.value, self.name)
