"""A manager whose calls all go through one function: that of a monitor or of a recording."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from kvspec.audit import Wrapper
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.events import Event
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample

T = TypeVar("T")

NOTHING: Mapping[str, Any] = MappingProxyType({})

Perform: TypeAlias = Callable[[str, Callable[[], Any], Mapping[str, Any], "Request | None"], Any]
"""Makes a call: its name, how to make it, its arguments by name with defaults, its request."""


class Forwarding(Wrapper):
    """A `KVCacheManager` that hands each call for `inner` to `perform`, which makes it.

    Members that are not of the interface are those of `inner`. A copy is a copy of `inner`.
    """

    def __init__(self, inner: KVCacheManager, perform: Perform) -> None:
        self.inner = inner
        self._perform = perform

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_perform"):  # not there while a copy is being built
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.inner, memo)

    @property
    def config(self) -> ManagerConfig:
        """The configuration."""
        return self.inner.config

    @property
    def none_hash(self) -> bytes:
        """The parent of first blocks."""
        return self.inner.none_hash

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue."""
        return self.inner.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the pool in use."""
        return self.inner.usage

    def snapshot(self) -> Snapshot:
        """The whole state."""
        return self.inner.snapshot()

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached prefix."""
        return self._about("get_computed_blocks", self.inner.get_computed_blocks, request)

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Every group's own longest hit."""
        given = {"max_hit_length_tokens": max_hit_length_tokens}
        return self._about(
            "find_longest_cache_hit_per_group",
            self.inner.find_longest_cache_hit_per_group,
            request,
            given,
        )

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Make room for tokens."""
        given = {
            "num_new_tokens": num_new_tokens,
            "num_new_computed_tokens": num_new_computed_tokens,
            "new_computed_blocks": new_computed_blocks,
            "num_lookahead_tokens": num_lookahead_tokens,
            "num_external_computed_tokens": num_external_computed_tokens,
            "delay_cache_blocks": delay_cache_blocks,
            "num_encoder_tokens": num_encoder_tokens,
            "full_sequence_must_fit": full_sequence_must_fit,
            "reserved_blocks": reserved_blocks,
            "has_scheduled_reqs": has_scheduled_reqs,
        }
        return self._about("allocate_slots", self.inner.allocate_slots, request, given)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register the hashes of full blocks."""
        self._about(
            "cache_blocks",
            self.inner.cache_blocks,
            request,
            {"num_computed_tokens": num_computed_tokens},
        )

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary."""
        given = {"group": group, "num_tokens": num_tokens}
        return self._about("cache_partial_block", self.inner.cache_partial_block, request, given)

    def free(self, request: Request) -> None:
        """Release all blocks of the request."""
        self._about("free", self.inner.free, request)

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references."""
        return self._about("pop_blocks_for_free", self.inner.pop_blocks_for_free, request)

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped blocks."""
        self._call("free_blocks", self.inner.free_blocks, {"block_ids": block_ids})

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs."""
        given = {"total_computed_tokens": total_computed_tokens}
        self._about("remove_skipped_blocks", self.inner.remove_skipped_blocks, request, given)

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks."""
        self._call("evict_blocks", self.inner.evict_blocks, {"block_ids": block_ids})

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use."""
        return self._call("reset_prefix_cache", self.inner.reset_prefix_cache)

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Per group, leading blocks that all running requests share."""
        return self._about(
            "get_num_common_prefix_blocks", self.inner.get_num_common_prefix_blocks, request
        )

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        """The request's block list per group."""
        return self._about("get_blocks", self.inner.get_blocks, request)

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Per group, the request's blocks that are neither null nor cached."""
        return self._about("get_unhashed_block_ids", self.inner.get_unhashed_block_ids, request)

    def get_num_blocks_to_allocate(
        self,
        request: Request,
        *,
        num_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int = 0,
        apply_admission_cap: bool = False,
    ) -> int:
        """Free blocks the request would take."""
        given = {
            "num_tokens": num_tokens,
            "total_computed_tokens": total_computed_tokens,
            "num_tokens_main_model": num_tokens_main_model,
            "num_encoder_tokens": num_encoder_tokens,
            "apply_admission_cap": apply_admission_cap,
        }
        return self._about(
            "get_num_blocks_to_allocate", self.inner.get_num_blocks_to_allocate, request, given
        )

    def take_events(self) -> tuple[Event, ...]:
        """Events since the last call."""
        return self._call("take_events", self.inner.take_events)

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Blocks to be zeroed."""
        return self._call("take_new_block_ids", self.inner.take_new_block_ids)

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Look-up counters since the last call."""
        return self._call("make_prefix_cache_stats", self.inner.make_prefix_cache_stats)

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Lives of sampled blocks."""
        return self._call("take_residency_samples", self.inner.take_residency_samples)

    def new_step_starts(self) -> None:
        """A scheduling step begins."""
        self._call("new_step_starts", self.inner.new_step_starts)

    def _about(
        self,
        name: str,
        call: Callable[..., T],
        request: Request,
        given: Mapping[str, Any] = NOTHING,
    ) -> T:
        """A call about a request, all other arguments by name."""
        result: T = self._perform(name, lambda: call(request, **given), given, request)
        return result

    def _call(self, name: str, call: Callable[..., T], given: Mapping[str, Any] = NOTHING) -> T:
        """A call about the whole pool."""
        result: T = self._perform(name, lambda: call(**given), given, None)
        return result
