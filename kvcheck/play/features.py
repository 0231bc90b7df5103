"""Features that the operations of a walk need, and which operations can be left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvspec.interface import Feature
from kvspec.record import Operation

FEATURE_OF_OPERATION: Mapping[str, Feature] = {
    "cache_blocks": Feature.DELAYED_CACHING,
    "cache_partial_block": Feature.PARTIAL_BLOCKS,
    "evict_blocks": Feature.EVICTION_BY_ID,
    "find_longest_cache_hit_per_group": Feature.HITS_PER_GROUP,
    "free_blocks": Feature.DEFERRED_FREE,
    "get_block_ids": Feature.UNHASHED_BLOCKS,
    "get_num_blocks_to_allocate": Feature.NEED,
    "get_num_common_prefix_blocks": Feature.COMMON_PREFIX,
    "make_prefix_cache_stats": Feature.STATISTICS,
    "pop_blocks_for_free": Feature.DEFERRED_FREE,
    "record_prefix_cache_stats": Feature.LATER_CHOICES,
    "remove_skipped_blocks": Feature.SKIPPED_REMOVAL,
    "reset_prefix_cache": Feature.RESET,
    "take_events": Feature.EVENTS,
    "take_block_copies": Feature.HITS_INSIDE_BLOCKS,
    "take_new_block_ids": Feature.NEW_BLOCK_IDS,
    "withdraw": Feature.WITHDRAWAL,
}
"""Operations that are not part of the base."""

FEATURE_OF_ARGUMENT: Mapping[str, Feature] = {
    "num_external_computed_tokens": Feature.EXTERNAL_TOKENS,
    "delay_cache_blocks": Feature.DELAYED_CACHING,
    "num_lookahead_tokens": Feature.DRAFTING,
    "full_sequence_must_fit": Feature.ADMISSION,
    "reserved_blocks": Feature.ADMISSION,
    "junction_tokens": Feature.JUNCTIONS,
    "num_in_flight_tokens": Feature.IN_FLIGHT,
}
"""Arguments of `allocate_slots` and `cache_blocks` that need a feature if they are set."""

FEATURE_OF_CONTENT: Mapping[str, Feature] = {
    "cache_salt": Feature.CACHE_SALT,
    "lora": Feature.LORA,
    "mm_features": Feature.MULTIMODAL,
    "skip_reading_prefix_cache": Feature.SKIP_READING,
    "reports_hits": Feature.HIT_REPORTS,
    "priority": Feature.EVICTION_ORDERS,
}
"""Arguments of `new_request` that need a feature if they are set."""

OF_OPERATIONS = frozenset(
    {*FEATURE_OF_OPERATION.values(), *FEATURE_OF_ARGUMENT.values(), *FEATURE_OF_CONTENT.values()}
)
"""Every feature that operations may need."""

QUESTIONS = frozenset(
    {
        "find_longest_cache_hit_per_group",
        "get_block_ids",
        "get_num_blocks_to_allocate",
        "get_num_common_prefix_blocks",
        "make_prefix_cache_stats",
        "record_prefix_cache_stats",
        "take_events",
        "take_new_block_ids",
    }
)
"""Operations that change no later result."""


def can_be_left_out(operation: Operation) -> bool:
    """Check that the rest of the walk is the same without it: queries and illegal calls."""
    return operation.raises is not None or operation.name in QUESTIONS


def needs(operation: Operation) -> set[Feature]:
    """Return what an operation needs besides the base."""
    found = {FEATURE_OF_OPERATION.get(operation.name)}
    if operation.name in ("allocate_slots", "cache_blocks"):
        given = operation.arguments
        found |= {feature for name, feature in FEATURE_OF_ARGUMENT.items() if given.get(name)}
    if operation.name == "new_request":
        given = operation.arguments
        found |= {feature for name, feature in FEATURE_OF_CONTENT.items() if given.get(name)}
    return {feature for feature in found if feature is not None}


def needed_features(operations: Iterable[Operation]) -> set[Feature]:
    """Return what a subject must have for the operations that cannot be left out.

    Drafts, which no argument names, are more new tokens than the request has; lists of unequal
    length are those of a look-up per group, beside a load.
    """
    tokens: dict[str | None, int] = {}
    looked_up: dict[str | None, str] = {}
    found: set[Feature] = set()
    for operation in operations:
        if operation.name in ("new_request", "append_tokens") and operation.raises is None:
            tokens[operation.request_id] = operation.result["num_tokens"]
        if operation.name in ("get_computed_blocks", "find_longest_cache_hit_per_group"):
            looked_up[operation.request_id] = operation.name
        if can_be_left_out(operation):
            continue
        found |= needs(operation)
        if operation.name == "allocate_slots":
            own = looked_up.pop(operation.request_id, "").endswith("per_group")
            if own and operation.arguments.get("num_external_computed_tokens"):
                found.add(Feature.UNEQUAL_HITS)
            asked = sum(operation.arguments.get(name, 0) for name in OF_THE_END)
            if asked > tokens[operation.request_id]:
                found.add(Feature.DRAFTING)
    return found


OF_THE_END = (
    *("num_computed_tokens", "num_new_computed_tokens"),
    *("num_external_computed_tokens", "num_new_tokens"),
)
"""Arguments that say together where an allocation ends."""
