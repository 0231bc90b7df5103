"""The one player: an operation by name becomes a call of a manager, and its answer is shown.

Operations and answers are those of records, and two that only programs have: residency samples, and
requests with embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType
from typing import Any, TypeAlias

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.event_codec import encode_event, encode_stats
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.operations import OPERATIONS
from kvspec.request import (
    LoRA,
    MultimodalItem,
    PromptEmbeddings,
    Request,
    RequestInput,
    RequestStatus,
)


@dataclass(frozen=True)
class Outcome:
    """What came of a call: its result in JSON, or the exception it ended with."""

    result: Any = None
    error: Exception | None = None


@dataclass
class Player:
    """One manager and the requests that were made for it.

    The requests stand for the scheduler's side: they outlive `free`, as a preempted request does.
    """

    implementation: Implementation
    manager: KVCacheManager
    requests: dict[str, Request] = field(default_factory=dict)

    def perform(self, name: str, request_id: str | None, arguments: Mapping[str, Any]) -> Outcome:
        """Play one operation. Whatever exception the implementation raises is an outcome too.

        Raises InvalidArgumentError for what is no operation: an unknown name, or a request that
        was not made before or that the operation is not about.
        """
        if name not in PLAYS:
            raise InvalidArgumentError("op", name, "one of " + ", ".join(PLAYS))
        on_request = name in OPERATIONS and OPERATIONS[name].on_request
        if (request_id is not None) != on_request:
            wanted = "a request id" if on_request else "None"
            raise InvalidArgumentError("req", request_id, f"{wanted} for {name}")
        if request_id is not None and name != "new_request" and request_id not in self.requests:
            raise InvalidArgumentError("req", request_id, "a request that new_request made before")
        try:
            return Outcome(PLAYS[name](self, request_id or "", arguments))
        except Exception as error:  # anything an implementation does is its answer
            return Outcome(error=error)

    def _new_request(self, name: str, args: Mapping[str, Any]) -> Any:
        lora, embeddings = args.get("lora"), args.get("prompt_embeddings")
        request = self.implementation.make_request(
            self.manager,
            RequestInput(
                request_id=name,
                prompt_token_ids=tuple(args["prompt_token_ids"]),
                cache_salt=args.get("cache_salt"),
                lora=None if lora is None else LoRA(lora["name"], lora["id"], lora.get("path")),
                multimodal=tuple(
                    MultimodalItem(item["identifier"], item["offset"], item["length"])
                    for item in args.get("mm_features") or ()
                ),
                prompt_embeddings=(
                    None if embeddings is None else PromptEmbeddings(bytes(embeddings), 1)
                ),
                skip_reading_cache=args.get("skip_reading_prefix_cache", False),
            ),
        )
        self.requests[name] = request
        return {"num_tokens": index(request.num_tokens), "block_hashes": _hex(request.block_hashes)}

    def _append_tokens(self, name: str, args: Mapping[str, Any]) -> Any:
        request = self.requests[name]
        before = len(request.block_hashes)
        self.implementation.append_tokens(self.manager, request, tuple(args["token_ids"]))
        hashes = request.block_hashes
        return {
            "num_tokens": index(request.num_tokens),
            "num_block_hashes": len(hashes),
            "new_block_hashes": _hex(hashes[before:]),
        }

    def _get_computed_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        request = self.requests[name]
        request.num_preemptions = args.get("num_preemptions", 0)
        hit = self.manager.get_computed_blocks(request)
        uncached = hit.uncached_common_prefix_tokens
        return {
            "blocks": hit.blocks.to_lists(),
            "num_computed_tokens": index(hit.hit_length_tokens),
            "num_uncached_common_prefix_tokens": None if uncached is None else index(uncached),
        }

    def _find_longest_cache_hit_per_group(self, name: str, args: Mapping[str, Any]) -> Any:
        hits = self.manager.find_longest_cache_hit_per_group(
            self.requests[name], args["max_cache_hit_length"]
        )
        return {"blocks": hits.blocks.to_lists(), "hit_lengths": _ints(hits.hit_lengths_tokens)}

    def _allocate_slots(self, name: str, args: Mapping[str, Any]) -> Any:
        request = self.requests[name]
        request.num_computed_tokens = args["num_computed_tokens"]
        request.status = RequestStatus(args["status"])
        hit = args.get("new_computed_blocks")
        allocated = self.manager.allocate_slots(
            request,
            args["num_new_tokens"],
            num_new_computed_tokens=args.get("num_new_computed_tokens", 0),
            new_computed_blocks=None if hit is None else KVCacheBlocks(tuple(map(tuple, hit))),
            num_lookahead_tokens=args.get("num_lookahead_tokens", 0),
            num_external_computed_tokens=args.get("num_external_computed_tokens", 0),
            delay_cache_blocks=args.get("delay_cache_blocks", False),
            num_encoder_tokens=args.get("num_encoder_tokens", 0),
            full_sequence_must_fit=args.get("full_sequence_must_fit", False),
            reserved_blocks=args.get("reserved_blocks", 0),
            has_scheduled_reqs=args.get("has_scheduled_reqs", True),
        )
        return None if allocated is None else allocated.to_lists()

    def _free(self, name: str, args: Mapping[str, Any]) -> Any:
        self.manager.free(self.requests[name])

    def _pop_blocks_for_free(self, name: str, args: Mapping[str, Any]) -> Any:
        return _ints(self.manager.pop_blocks_for_free(self.requests[name]))

    def _free_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        self.manager.free_blocks(tuple(args["block_ids"]))

    def _remove_skipped_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        self.manager.remove_skipped_blocks(self.requests[name], args["total_computed_tokens"])

    def _cache_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        self.manager.cache_blocks(self.requests[name], args["num_computed_tokens"])

    def _cache_partial_block(self, name: str, args: Mapping[str, Any]) -> Any:
        request = self.requests[name]
        return self.manager.cache_partial_block(request, args["group"], args["num_tokens"])

    def _evict_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        self.manager.evict_blocks(tuple(args["block_ids"]))

    def _reset_prefix_cache(self, name: str, args: Mapping[str, Any]) -> Any:
        return self.manager.reset_prefix_cache()

    def _get_num_common_prefix_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        return _ints(self.manager.get_num_common_prefix_blocks(self.requests[name]))

    def _get_block_ids(self, name: str, args: Mapping[str, Any]) -> Any:
        request = self.requests[name]
        has_unhashed = Feature.UNHASHED_BLOCKS in self.implementation.capabilities.features
        asked = self.manager.get_unhashed_block_ids(request) if has_unhashed else None
        blocks = self.manager.get_blocks(request).to_lists()
        unhashed = [[] for _ in blocks] if asked is None else [_ints(ids) for ids in asked]
        return {"blocks": blocks, "unhashed": unhashed}

    def _get_num_blocks_to_allocate(self, name: str, args: Mapping[str, Any]) -> Any:
        return index(
            self.manager.get_num_blocks_to_allocate(
                self.requests[name],
                num_tokens=args["num_tokens"],
                total_computed_tokens=args["total_computed_tokens"],
                num_tokens_main_model=args["num_tokens_main_model"],
                num_encoder_tokens=args.get("num_encoder_tokens", 0),
                apply_admission_cap=args.get("apply_admission_cap", False),
            )
        )

    def _take_new_block_ids(self, name: str, args: Mapping[str, Any]) -> Any:
        return _ints(self.manager.take_new_block_ids())

    def _new_step_starts(self, name: str, args: Mapping[str, Any]) -> Any:
        self.manager.new_step_starts()

    def _make_prefix_cache_stats(self, name: str, args: Mapping[str, Any]) -> Any:
        stats = self.manager.make_prefix_cache_stats()
        return None if stats is None else encode_stats(stats)

    def _take_events(self, name: str, args: Mapping[str, Any]) -> Any:
        return [encode_event(event) for event in self.manager.take_events()]

    def _take_residency_samples(self, name: str, args: Mapping[str, Any]) -> Any:
        """How often each life was touched: times are those of a real clock."""
        samples = self.manager.take_residency_samples()
        return [len(sample.reuse_gaps_ns) for sample in samples]


Play: TypeAlias = Callable[[Player, str, Mapping[str, Any]], Any]

PLAYS: Mapping[str, Play] = MappingProxyType(
    {
        "new_request": Player._new_request,
        "append_tokens": Player._append_tokens,
        "get_computed_blocks": Player._get_computed_blocks,
        "find_longest_cache_hit_per_group": Player._find_longest_cache_hit_per_group,
        "allocate_slots": Player._allocate_slots,
        "free": Player._free,
        "pop_blocks_for_free": Player._pop_blocks_for_free,
        "free_blocks": Player._free_blocks,
        "remove_skipped_blocks": Player._remove_skipped_blocks,
        "cache_blocks": Player._cache_blocks,
        "cache_partial_block": Player._cache_partial_block,
        "evict_blocks": Player._evict_blocks,
        "reset_prefix_cache": Player._reset_prefix_cache,
        "get_num_common_prefix_blocks": Player._get_num_common_prefix_blocks,
        "get_block_ids": Player._get_block_ids,
        "get_num_blocks_to_allocate": Player._get_num_blocks_to_allocate,
        "take_new_block_ids": Player._take_new_block_ids,
        "new_step_starts": Player._new_step_starts,
        "make_prefix_cache_stats": Player._make_prefix_cache_stats,
        "take_events": Player._take_events,
        "take_residency_samples": Player._take_residency_samples,
    }
)
"""How each operation is played."""


def _ints(values: Iterable[Any]) -> list[int]:
    """Plain ints: an implementation may answer with an array, never with floats."""
    return [index(value) for value in values]


def _hex(hashes: Iterable[bytes]) -> list[str]:
    return [block_hash.hex() for block_hash in hashes]
