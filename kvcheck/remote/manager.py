"""A manager that lives in a child process: every call is one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kvcheck.remote.connection import Connection
from kvcheck.remote.request import own
from kvcheck.remote.values import carried
from kvspec._json import Where
from kvspec.audit import unwrapped
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import FormatError, InvalidArgumentError, UnknownBlockError
from kvspec.event_codec import decode_event, decode_stats
from kvspec.events import Event
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample

ALLOCATE_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "num_new_computed_tokens": 0,
        "new_computed_blocks": None,
        "num_lookahead_tokens": 0,
        "num_external_computed_tokens": 0,
        "delay_cache_blocks": False,
        "num_encoder_tokens": 0,
        "full_sequence_must_fit": False,
        "reserved_blocks": 0,
        "has_scheduled_reqs": True,
    }
)
"""What stands for an option of `allocate_slots` that is left out."""


class RemoteManager:
    """See `kvspec.interface.KVCacheManager` for what each call promises."""

    def __init__(
        self, connection: Connection, handle: int, config: ManagerConfig, none_hash: bytes
    ) -> None:
        self.connection = connection
        self.handle = handle
        self.config = config
        self.none_hash = none_hash
        self._num_allocations = 0
        connection.forget(self, "managers", handle)

    @classmethod
    def made(
        cls, connection: Connection, handle: int, config: ManagerConfig, made: dict[str, Any]
    ) -> RemoteManager:
        """A manager as `create_manager` answered it."""
        try:
            filled = replace(
                config,
                scheduler_block_size_tokens=made["scheduler_block_size"],
                hash_block_size_tokens=made["hash_block_size"],
            )
        except InvalidArgumentError as error:
            raise connection.nonsense(str(error)) from None
        return cls(connection, handle, filled, made["none_hash"])

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue."""
        return int(self._call("get_usage")["num_free_blocks"])

    @property
    def usage(self) -> float:
        """Share of the pool in use."""
        return float(self._call("get_usage")["usage"])

    def _call(self, op: str, **args: Any) -> Any:
        """A message about the manager alone."""
        return self.connection.call(op, manager=self.handle, args=args)

    def _ask(self, op: str, request: Request, **args: Any) -> Any:
        """A message about a request, which takes along what its scheduler changed."""
        mine = own(request, self.connection)
        sent = {name: carried(name, value) for name, value in args.items()}
        return mine.call(op, self.handle, sent)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached prefix."""
        hit = self._ask("get_computed_blocks", request)
        return PrefixHit(
            self._blocks(hit["blocks"]),
            hit["num_computed_tokens"],
            hit["num_uncached_common_prefix_tokens"],
        )

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Every group's own longest hit."""
        hits = self._ask(
            "find_longest_cache_hit_per_group", request, max_cache_hit_length=max_hit_length_tokens
        )
        return GroupHits(self._blocks(hits["blocks"]), tuple(hits["hit_lengths"]))

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
        """Room for tokens about to be computed, or None."""
        hit = new_computed_blocks
        if hit is not None and not isinstance(hit, KVCacheBlocks):
            raise InvalidArgumentError("new_computed_blocks", hit, "KVCacheBlocks or None")
        options = {
            "num_new_computed_tokens": num_new_computed_tokens,
            "new_computed_blocks": None if hit is None else self._sent_hits(hit),
            "num_lookahead_tokens": num_lookahead_tokens,
            "num_external_computed_tokens": num_external_computed_tokens,
            "delay_cache_blocks": delay_cache_blocks,
            "num_encoder_tokens": num_encoder_tokens,
            "full_sequence_must_fit": full_sequence_must_fit,
            "reserved_blocks": reserved_blocks,
            "has_scheduled_reqs": has_scheduled_reqs,
        }
        sent = self._some_left_out(options)
        allocated = self._ask("allocate_slots", request, num_new_tokens=num_new_tokens, **sent)
        return None if allocated is None else self._blocks(allocated)

    def _some_left_out(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options without half of those at their default, another half each time.

        So that what a server takes for a default is tried, too.
        """
        self._num_allocations += 1
        return {
            name: value
            for number, (name, value) in enumerate(options.items(), self._num_allocations)
            if number % 2 or value is not ALLOCATE_DEFAULTS[name]
        }

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register the hashes of the full blocks among the first tokens."""
        self._ask("cache_blocks", request, num_computed_tokens=num_computed_tokens)

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it."""
        return bool(self._ask("cache_partial_block", request, group=group, num_tokens=num_tokens))

    def free(self, request: Request) -> None:
        """Release all blocks of the request."""
        self._ask("free", request)

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request but keep its blocks referenced."""
        return tuple(self._ask("pop_blocks_for_free", request))

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped blocks, in one release call."""
        self._call("free_blocks", block_ids=self._sent_blocks("block_ids", block_ids))

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs."""
        self._ask("remove_skipped_blocks", request, total_computed_tokens=total_computed_tokens)

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks."""
        self._call("evict_blocks", block_ids=self._sent_blocks("block_ids", block_ids))

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use."""
        return bool(self._call("reset_prefix_cache"))

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Per group, leading blocks that all running requests share."""
        return tuple(self._ask("get_num_common_prefix_blocks", request))

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        """The request's block list per group."""
        return self._blocks(self._ask("get_block_ids", request)["blocks"])

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Per group, the request's blocks that are neither null nor cached."""
        return tuple(map(tuple, self._ask("get_block_ids", request)["unhashed"]))

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
        return int(
            self._ask(
                "get_num_blocks_to_allocate",
                request,
                num_tokens=num_tokens,
                total_computed_tokens=total_computed_tokens,
                num_tokens_main_model=num_tokens_main_model,
                num_encoder_tokens=num_encoder_tokens,
                apply_admission_cap=apply_admission_cap,
            )
        )

    def take_events(self) -> tuple[Event, ...]:
        """Events since the last call."""
        where = Where("answer", field="result")
        int_hashes = self.config.int_event_hashes
        try:
            return tuple(
                decode_event(event, where.item(position), int_hashes=int_hashes)
                for position, event in enumerate(self._call("take_events"))
            )
        except FormatError as error:
            raise self.connection.nonsense(str(error)) from None

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Blocks to be zeroed."""
        return tuple(self._call("take_new_block_ids"))

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Look-up counters since the last call."""
        stats = self._call("make_prefix_cache_stats")
        return None if stats is None else decode_stats(stats, Where("answer"))

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Lives of sampled blocks that ended."""
        return tuple(self._call("take_residency_samples"))

    def new_step_starts(self) -> None:
        """A scheduling step begins."""
        self._call("new_step_starts")

    def snapshot(self) -> Snapshot:
        """The whole abstract state."""
        found: Snapshot = self._call("snapshot")
        return found

    def _blocks(self, groups: list[list[int]]) -> KVCacheBlocks:
        """Block ids per group, as many groups as there are."""
        if len(groups) != len(self.config.kv_cache.groups):
            raise self.connection.nonsense(f"{len(groups)} lists of blocks, not one per group")
        return KVCacheBlocks(tuple(map(tuple, groups)))

    def _sent_hits(self, hit: KVCacheBlocks) -> list[Any]:
        return [
            self._sent_blocks(f"new_computed_blocks[{group}]", ids)
            for group, ids in enumerate(hit.groups)
        ]

    def _sent_blocks(self, field: str, ids: Sequence[int]) -> list[Any]:
        """Block ids as they are sent; one that no message can say is no block."""
        try:
            return sent_ids(field, ids)
        except InvalidArgumentError as error:
            if error.field == field:
                raise
            raise UnknownBlockError(error.value, self.config.kv_cache.num_blocks) from None


def sent_ids(field: str, ids: Sequence[int]) -> list[Any]:
    """Tokens or blocks as they are sent. A set is no sequence: the order matters."""
    if not isinstance(ids, Sequence):
        raise InvalidArgumentError(field, ids, "a sequence")
    listed: list[Any] = carried(field, list(ids))
    return listed


def foresee(manager: KVCacheManager, *questions: str) -> None:
    """Say which of `QUESTIONS` come right after the next call, so that they go out along with it.

    Nothing happens if the manager lives in this process.
    """
    if isinstance(manager, RemoteManager):
        manager.connection.foresee(manager.handle, questions)


def manager_handle(manager: KVCacheManager) -> RemoteManager:
    """The manager, if it lives in a child process; without a monitor around it."""
    inner = unwrapped(manager)
    if not isinstance(inner, RemoteManager):
        raise InvalidArgumentError("manager", manager, "made by this implementation's create")
    return inner
