"""vLLM's manager, call by call. Ids become vLLM's block objects on the way in, and ids again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from kvcheck.adapters.vllm.errors import NAME, config_errors, typed_errors
from kvcheck.adapters.vllm.events import translate_event
from kvcheck.adapters.vllm.library import Library, environment
from kvcheck.adapters.vllm.request import VLLMRequest, make_request, own_request
from kvcheck.adapters.vllm.specs import cache_config, with_block_sizes
from kvcheck.adapters.vllm.state import block_ids, take_snapshot
from kvspec.blocks import NULL_BLOCK, GroupHits, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError, UnknownBlockError, UnsupportedError
from kvspec.events import Event
from kvspec.inside import BlockCopies, hits_end_inside
from kvspec.request import Request, RequestInput, has_extra_keys
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample

UNCACHED_PREFIX = "num_uncached_common_prefix_tokens"
"""The attribute in which vLLM's coordinator of several groups leaves that number for its
scheduler.
"""

PER_GROUP = "find_longest_cache_hit_per_group"
"""The attribute that only that coordinator has."""


class VLLMManager:
    """See `kvspec.interface.KVCacheManager` for what each call promises.

    `popped` lists references popped by `pop_blocks_for_free` and not yet returned: vLLM leaves that
    to its scheduler. See `scheduler_view` for `keeps_uncached_prefix`.
    """

    def __init__(
        self, library: Library, config: ManagerConfig, *, keeps_uncached_prefix: bool = False
    ) -> None:
        self.library = library
        self.config = with_block_sizes(config)
        self.keeps_uncached_prefix = keeps_uncached_prefix
        self.popped: list[int] = []
        self.reports: list[Any] = []
        interval = config.retention_interval_tokens
        retention = None if interval is None else str(interval)
        with config_errors(), environment(VLLM_PREFIX_CACHE_RETENTION_INTERVAL=retention):
            ahead = config.hash_lookahead_tokens
            more = {"num_hash_lookahead_tokens": ahead} if ahead else {}
            self.block_hasher = library.utils.get_request_block_hasher(
                self.config.hash_block_size_tokens,
                library.hash_function(config.hash_function),
                **more,
            )
            self._none_hash = library.make_none_hash(config.hash_function, config.hash_seed)
            in_flight = "max_in_flight_tokens" if library.is_later else "max_num_batched_tokens"
            self.inner = library.manager.KVCacheManager(
                kv_cache_config=cache_config(library, config.kv_cache, interval),
                max_model_len=config.max_model_len_tokens,
                scheduler_block_size=self.config.scheduler_block_size_tokens,
                hash_block_size=self.config.hash_block_size_tokens,
                enable_caching=config.enable_caching,
                use_eagle=config.use_eagle and not ahead,  # as its scheduler does
                log_stats=config.log_stats,
                enable_kv_cache_events=config.enable_events,
                dcp_world_size=config.dcp_world_size,
                pcp_world_size=config.pcp_world_size,
                watermark=config.watermark,
                **{in_flight: config.max_num_batched_tokens, **more},
            )
        ends_inside = getattr(self.inner.coordinator, "enable_partial_hash_hits", False)
        if ends_inside != (library.is_later and hits_end_inside(self.config)):
            raise UnsupportedError("hits inside a block elsewhere than in KV-INSIDE-1", NAME)

    @property
    def none_hash(self) -> bytes:
        return self._none_hash

    @property
    def num_free_blocks(self) -> int:
        return int(self.inner.block_pool.get_num_free_blocks())

    @property
    def usage(self) -> float:
        return float(self.inner.usage)

    # Requests.

    def make_request(self, request: RequestInput) -> VLLMRequest:
        """vLLM's request, hashed with this manager's function and first parent."""
        form = self.config.policy.extra_keys
        if form != self.library.policy.extra_keys and has_extra_keys(request):
            raise UnsupportedError(f"extra keys as extra_keys = {form!r} has them", NAME)
        with typed_errors("make_request"), self.library.parent_hash(self._none_hash):
            hasher = self.block_hasher if self.config.enable_caching else None
            return make_request(self.library, request, hasher)

    def append_tokens(self, request: Request, token_ids: list[int]) -> None:
        with typed_errors("append_tokens"), self.library.parent_hash(self._none_hash):
            own_request(request).inner.append_output_token_ids(token_ids)

    # Looking up.

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        own = own_request(request)
        before = len(self.inner.block_pool.kv_event_queue)
        blocks, length, *later = self._call("get_computed_blocks", own.inner)
        self.reports += self.inner.block_pool.kv_event_queue[before:]  # nothing is stored here
        uncached = self._uncached_prefix(own, max(0, sum(later) - length))
        return PrefixHit(_to_ids(blocks.blocks), int(length), uncached)

    def _uncached_prefix(self, request: VLLMRequest, beyond: int) -> int | None:
        """Return how far a group reached `beyond` the hit, which 0.33 returns and 0.24 keeps."""
        reads_cache = self.config.enable_caching and not request.skips_cache
        if self.library.is_later:
            has_several = hasattr(self.inner.coordinator, PER_GROUP)
            return beyond if has_several and reads_cache else None
        if not reads_cache and not self.keeps_uncached_prefix:
            return None
        value = getattr(self.inner.coordinator, UNCACHED_PREFIX, None)
        return None if value is None else int(value)

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Every group's own longest hit; only vLLM's coordinator of several groups has it."""
        own = own_request(request)
        look_up = getattr(self.inner.coordinator, PER_GROUP, None)
        if look_up is None:
            raise UnsupportedError("per-group look-ups without several groups and caching", NAME)
        with self._calling(PER_GROUP):
            blocks, lengths = look_up(own.inner.block_hashes, max_hit_length_tokens)
        return GroupHits(_to_ids(blocks), tuple(map(int, lengths)))

    # Allocating.

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        new_computed_blocks: KVCacheBlocks | None = None,
        **options: Any,
    ) -> KVCacheBlocks | None:
        """Room for tokens about to be computed, or None. The options have the same names there."""
        own, options["new_computed_blocks"] = own_request(request), self._hits(new_computed_blocks)
        answer = self._call("allocate_slots", own.inner, num_new_tokens, **options)
        return None if answer is None else _to_ids(answer.blocks)

    def _hits(self, blocks: KVCacheBlocks | None) -> Any:
        """Return vLLM's blocks of a hit; None for an empty one, as its own look-up does."""
        if blocks is None:
            return None
        if not isinstance(blocks, KVCacheBlocks):
            raise InvalidArgumentError("new_computed_blocks", blocks, "KVCacheBlocks or None")
        if blocks.is_empty:
            return None
        return self.library.manager.KVCacheBlocks(
            tuple([self._block(block) for block in ids] for ids in blocks.groups)
        )

    def get_num_blocks_to_allocate(
        self, request: Request, *, total_computed_tokens: int, **counts: Any
    ) -> int:
        """The blocks that an allocation would take. The counts have the same names there."""
        own = own_request(request)
        if self.library.is_later:
            counts["num_local_computed_tokens"] = total_computed_tokens
            counts["prefill_end"] = max(own.num_prompt_tokens, own.num_tokens - 1)
        needed = self.inner.coordinator.get_num_blocks_to_allocate
        counts = {"num_encoder_tokens": 0, "apply_admission_cap": False, **counts}
        with self._calling("get_num_blocks_to_allocate"):
            hits = self.inner.empty_kv_cache_blocks.blocks
            counts |= {"new_computed_blocks": hits, "total_computed_tokens": total_computed_tokens}
            return int(needed(request_id=own.request_id, **counts))

    # Caching.

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        self._call("cache_blocks", own_request(request).inner, num_computed_tokens)

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary; vLLM's pool wants the block itself."""
        own = own_request(request)
        groups = self.inner.coordinator.single_type_managers
        if not is_int(group) or not 0 <= group < len(groups):
            raise InvalidArgumentError("group", group, f"an int in 0 … {len(groups) - 1}")
        size = groups[group].block_size
        blocks = groups[group].req_to_blocks.get(own.request_id, ())
        if not is_int(num_tokens) or not 1 <= num_tokens <= len(blocks) * size:
            raise InvalidArgumentError(
                "num_tokens", num_tokens, f"an int in 1 … {len(blocks) * size}, the slots it holds"
            )
        with self._calling("cache_partial_block"):
            key = self.inner.block_pool.cache_partial_block(
                own.inner, blocks[(num_tokens - 1) // size], num_tokens, group, size
            )
        return key is not None

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        self._call("evict_blocks", block_ids)

    def reset_prefix_cache(self) -> bool:
        return bool(self._call("reset_prefix_cache"))

    # Releasing.

    def free(self, request: Request) -> None:
        self._call("free", own_request(request).inner)

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        ids = block_ids(self._call("pop_blocks_for_free", own_request(request).inner))
        self.popped.extend(block for block in ids if block != NULL_BLOCK)
        return ids

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return references; whether they are owed is for vLLM to check."""
        blocks = [self._block(block) for block in block_ids]
        with self._calling("free_blocks"):
            self.inner.block_pool.free_blocks(blocks)
        for block in block_ids:
            if block in self.popped:
                self.popped.remove(block)

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        own = own_request(request)
        later = {"num_prompt_tokens": own.num_prompt_tokens} if self.library.is_later else {}
        self._call("remove_skipped_blocks", own.request_id, total_computed_tokens, **later)

    def take_block_copies(self) -> BlockCopies:
        """Copies on write, and what is held for them; a call of 0.33."""
        copies, retained = self._call("take_kv_cache_block_copies")
        self.popped.extend(block_ids(retained))
        pairs = tuple((int(each.src_block_id), int(each.dst_block_id)) for each in copies)
        return BlockCopies(pairs, block_ids(retained))

    # Asking.

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        name = own_request(request).request_id
        return tuple(map(int, self._call("get_num_common_prefix_blocks", name)))

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        return _to_ids(self.inner.get_blocks(own_request(request).request_id).blocks)

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        blocks = self.inner.get_blocks(own_request(request).request_id)
        return tuple(map(tuple, blocks.get_unhashed_block_ids_all_groups()))

    def take_events(self) -> tuple[Event, ...]:
        reports, self.reports = self.reports, []
        return tuple(
            translate_event(self.library, event, is_report=any(event is each for each in reports))
            for event in self.inner.take_events()
        )

    def take_new_block_ids(self) -> tuple[int, ...]:
        return tuple(map(int, self.inner.take_new_block_ids()))

    def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int) -> None:
        """Count a look-up of a request that was admitted; vLLM has this call from 0.33 on."""
        own = own_request(request)
        if self.library.is_later:
            self.inner.record_prefix_cache_stats(own.inner, num_hit_tokens)

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        return stats_of(self.inner.make_prefix_cache_stats())

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """None: a configuration that samples is refused."""
        return ()

    def new_step_starts(self) -> None:
        self.inner.new_step_starts()

    def snapshot(self) -> Snapshot:
        return take_snapshot(self.library, self.inner, self.popped, self._none_hash)

    # Translating.

    @contextmanager
    def _calling(self, call: str) -> Iterator[None]:
        """vLLM's errors made ours, and event hashes in this manager's form."""
        form = "1" if self.config.int_event_hashes else "0"
        with typed_errors(call), environment(VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=form):
            yield

    def _call(self, call: str, *given: Any, **options: Any) -> Any:
        with self._calling(call):
            return getattr(self.inner, call)(*given, **options)

    def _block(self, block: int) -> Any:
        """vLLM's block of that id; what has no block cannot be passed on."""
        blocks = self.inner.block_pool.blocks
        if not is_int(block) or not 0 <= block < len(blocks):
            raise UnknownBlockError(block, len(blocks))
        return blocks[block]


def _to_ids(groups: Sequence[Sequence[Any]]) -> KVCacheBlocks:
    return KVCacheBlocks(tuple(block_ids(blocks) for blocks in groups))


def stats_of(stats: Any) -> PrefixCacheStats | None:
    """Convert vLLM's counters, whose names lack the unit."""
    if stats is None:
        return None
    names = (each.name for each in fields(PrefixCacheStats))
    return PrefixCacheStats(**{n: getattr(stats, n.removesuffix("_tokens")) for n in names})
