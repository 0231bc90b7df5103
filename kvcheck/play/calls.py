"""All calls of a manager by name, in one table for players, servers, monitors and recorders.

Records and the protocol write a call as plain values (spec/records.md). `make` makes a call of
them, `ANSWERS` and `decoded` convert results to plain values and back. A proxy of a manager is a
`Delegating`, which receives all calls in one method.
"""

# The type of a result follows from the call's name, which a type checker cannot know:
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import index
from types import MappingProxyType
from typing import Any

from kvspec._json import Where
from kvspec.blocks import BlockFacts, GroupHits, KVCacheBlocks, PrefixHit
from kvspec.errors import UnsupportedError
from kvspec.event_codec import decode_event, decode_stats, encode_event, encode_stats
from kvspec.events import Event
from kvspec.inside import BlockCopies
from kvspec.interface import KVCacheManager
from kvspec.operations import OPERATIONS
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, Request, RequestInput
from kvspec.snapshot_codec import ints
from kvspec.stats import PrefixCacheStats, ResidencySample

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        name: MappingProxyType(dict(getattr(KVCacheManager, name).__kwdefaults__))
        for name in ("allocate_slots", "get_num_blocks_to_allocate")
    }
)
"""The default of each optional argument, by call."""

POSITIONAL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "find_longest_cache_hit_per_group": ("max_cache_hit_length",),
        "allocate_slots": ("num_new_tokens",),
        "free_blocks": ("block_ids",),
        "remove_skipped_blocks": ("total_computed_tokens",),
        "cache_blocks": ("num_computed_tokens",),
        "cache_partial_block": ("group", "num_tokens"),
        "withdraw": ("num_computed_tokens",),
        "record_prefix_cache_stats": ("num_hits",),
        "evict_blocks": ("block_ids",),
    }
)
"""Arguments that implementations may give another name."""


def input_of(
    name: str, arguments: Mapping[str, Any], embeddings: PromptEmbeddings | None = None
) -> RequestInput:
    """Return the content of a request of this name: the arguments of `new_request`."""
    lora = arguments.get("lora")
    return RequestInput(
        request_id=name,
        prompt_token_ids=tuple(arguments["prompt_token_ids"]),
        cache_salt=arguments.get("cache_salt"),
        lora=None if lora is None else LoRA(**lora),
        multimodal=tuple(MultimodalItem(**item) for item in arguments.get("mm_features") or ()),
        prompt_embeddings=embeddings,
        skip_reading_cache=arguments.get("skip_reading_prefix_cache", False),
        reports_hits=arguments.get("reports_hits", False),
    )


def content_of(given: RequestInput) -> dict[str, Any]:
    """Return the arguments of `new_request` besides tokens and embeddings, those that are set."""
    lora = given.lora
    path = {} if lora is None or lora.path is None else {"path": lora.path}
    content: dict[str, Any] = {
        "cache_salt": given.cache_salt,
        "lora": None if lora is None else {"name": lora.name, "id": lora.id, **path},
        "mm_features": [asdict(item) for item in given.multimodal] or None,
        "skip_reading_prefix_cache": given.skip_reading_cache or None,
        "reports_hits": given.reports_hits or None,
    }
    return {name: value for name, value in content.items() if value is not None}


def make(
    manager: KVCacheManager, name: str, request: Request | None, arguments: Mapping[str, Any]
) -> Any:
    """Make the call with plain arguments, those that are the manager's; return its raw result."""
    given = {argument: sequence(value) for argument, value in arguments.items()}
    hit = given.get("new_computed_blocks")
    if isinstance(hit, tuple):
        given["new_computed_blocks"] = KVCacheBlocks(tuple(map(sequence, hit)))
    first = [given.pop(argument) for argument in POSITIONAL.get(name, ())]
    about = [request] if OPERATIONS[name].on_request else []
    return getattr(manager, name)(*about, *first, **given)


def sequence(value: Any) -> Any:
    """Return a list as a tuple; anything else is left for the implementation to refuse."""
    return tuple(value) if isinstance(value, list) else value


def _count(value: Any) -> int | None:
    return None if value is None else index(value)


def _lists(blocks: KVCacheBlocks | None) -> list[list[int]] | None:
    return None if blocks is None else blocks.to_lists()


def _as_it_is(answer: Any) -> Any:
    return answer


ANSWERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "get_computed_blocks": lambda hit: {
            "blocks": hit.blocks.to_lists(),
            "num_computed_tokens": index(hit.hit_length_tokens),
            "num_uncached_common_prefix_tokens": _count(hit.uncached_common_prefix_tokens),
        },
        "find_longest_cache_hit_per_group": lambda hits: {
            "blocks": hits.blocks.to_lists(),
            "hit_lengths": ints(hits.hit_lengths_tokens),
        },
        "allocate_slots": _lists,
        "pop_blocks_for_free": ints,
        "cache_partial_block": _as_it_is,
        "withdraw": list,
        "reset_prefix_cache": _as_it_is,
        "get_num_common_prefix_blocks": ints,
        "get_num_blocks_to_allocate": index,
        "take_new_block_ids": ints,
        "take_block_copies": lambda copies: {
            "pairs": [ints(pair) for pair in copies.pairs],
            "retained": ints(copies.retained),
        },
        "make_prefix_cache_stats": lambda stats: None if stats is None else encode_stats(stats),
        "take_events": lambda events: [encode_event(event) for event in events],
    }
)
"""The encoder of each call's result, for calls that have one."""


def plain(name: str, answer: Any) -> Any:
    """Encode a result in plain values; None for a call without one, whatever it returned."""
    return ANSWERS[name](answer) if name in ANSWERS else None


def _blocks(lists: Sequence[Sequence[int]]) -> KVCacheBlocks:
    return KVCacheBlocks(tuple(map(tuple, lists)))


def decoded(name: str, answer: Any, where: Where, *, int_hashes: bool) -> Any:
    """Decode a result. Raises FormatError if it is not a valid event or statistics."""
    if answer is None:
        return None
    if name == "take_events":
        return tuple(
            decode_event(event, where.item(position), int_hashes=int_hashes)
            for position, event in enumerate(answer)
        )
    if name == "make_prefix_cache_stats":
        return decode_stats(answer, where)
    return DECODED.get(name, _as_it_is)(answer)


DECODED: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "get_computed_blocks": lambda hit: PrefixHit(
            _blocks(hit["blocks"]),
            hit["num_computed_tokens"],
            hit["num_uncached_common_prefix_tokens"],
        ),
        "find_longest_cache_hit_per_group": lambda hits: GroupHits(
            _blocks(hits["blocks"]), tuple(hits["hit_lengths"])
        ),
        "allocate_slots": _blocks,
        "pop_blocks_for_free": tuple,
        "get_num_common_prefix_blocks": tuple,
        "get_blocks": lambda lists: _blocks(lists["blocks"]),
        "get_unhashed_block_ids": lambda lists: tuple(map(tuple, lists["unhashed"])),
        "take_new_block_ids": tuple,
        "withdraw": tuple,
        "take_block_copies": lambda copies: BlockCopies(
            tuple((source, destination) for source, destination in copies["pairs"]),
            tuple(copies["retained"]),
        ),
        "take_residency_samples": tuple,
    }
)


class Delegating:
    """The calls of a `KVCacheManager`, all forwarded to `_made`."""

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        """Make the call `name`. `given`: its arguments by the interface's names, with defaults."""
        raise NotImplementedError

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix."""
        return self._made("get_computed_blocks", request, {})

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Return each group's own longest hit."""
        given = {"max_hit_length_tokens": max_hit_length_tokens}
        return self._made("find_longest_cache_hit_per_group", request, given)

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
        """Allocate slots for tokens."""
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
        return self._made("allocate_slots", request, given)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register the hashes of full blocks."""
        self._made("cache_blocks", request, {"num_computed_tokens": num_computed_tokens})

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary."""
        given = {"group": group, "num_tokens": num_tokens}
        return self._made("cache_partial_block", request, given)

    def free(self, request: Request) -> None:
        """Release all blocks of the request."""
        self._made("free", request, {})

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references."""
        return self._made("pop_blocks_for_free", request, {})

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped blocks."""
        self._made("free_blocks", None, {"block_ids": block_ids})

    def hold_blocks(self, block_ids: Sequence[int]) -> None:
        """Raise UnsupportedError: neither records nor messages have this call."""
        raise UnsupportedError("hold_blocks", type(self).__name__)

    def get_block(self, block_id: int) -> BlockFacts:
        """Raise UnsupportedError: neither records nor messages have this call."""
        raise UnsupportedError("get_block", type(self).__name__)

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs."""
        given = {"total_computed_tokens": total_computed_tokens}
        self._made("remove_skipped_blocks", request, given)

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks."""
        self._made("evict_blocks", None, {"block_ids": block_ids})

    def withdraw(self, request: Request, num_computed_tokens: int) -> tuple[str, ...]:
        """Take back what was planned beyond the computed tokens."""
        given = {"num_computed_tokens": num_computed_tokens}
        return self._made("withdraw", request, given)

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use."""
        return self._made("reset_prefix_cache", None, {})

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Count per group the leading blocks that all running requests share."""
        return self._made("get_num_common_prefix_blocks", request, {})

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        """Return the request's block list per group."""
        return self._made("get_blocks", request, {})

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Return per group the request's blocks that are neither null nor cached."""
        return self._made("get_unhashed_block_ids", request, {})

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
        """Count the free blocks that the request would take."""
        given = {
            "num_tokens": num_tokens,
            "total_computed_tokens": total_computed_tokens,
            "num_tokens_main_model": num_tokens_main_model,
            "num_encoder_tokens": num_encoder_tokens,
            "apply_admission_cap": apply_admission_cap,
        }
        return self._made("get_num_blocks_to_allocate", request, given)

    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call."""
        return self._made("take_events", None, {})

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Return the blocks to be zeroed."""
        return self._made("take_new_block_ids", None, {})

    def take_block_copies(self) -> BlockCopies:
        """Return the copies to make before the step."""
        return self._made("take_block_copies", None, {})

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return the look-up counters since the last call."""
        return self._made("make_prefix_cache_stats", None, {})

    def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int) -> None:
        """Count a look-up at admission."""
        self._made("record_prefix_cache_stats", request, {"num_hit_tokens": num_hit_tokens})

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Return the residency samples since the last call."""
        return self._made("take_residency_samples", None, {})

    def new_step_starts(self) -> None:
        """Begin a scheduling step."""
        self._made("new_step_starts", None, {})
