"""The operations of a record: their names, arguments and the shape of their results.

`spec/records.md` says what each means; the reader checks files against this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kvspec._json import (
    Check,
    Where,
    anything,
    boolean,
    checked_members,
    count,
    hex_text,
    integer,
    list_of,
    null,
    optional,
    structure,
    text,
)
from kvspec.event_codec import decode_stats
from kvspec.request import RequestStatus

BLOCKS = list_of(list_of(count))
"""Block ids, one list per group."""


def status(value: object, where: Where) -> str:
    """Check the name of a request status."""
    name = text(value, where)
    if name not in RequestStatus.__members__:
        raise where.error(f"{name!r} is not one of {', '.join(RequestStatus.__members__)}")
    return name


def stats(value: object, where: Where) -> Any:
    """Return look-up counters unchanged, after a check."""
    decode_stats(value, where)
    return value


@dataclass(frozen=True)
class OperationShape:
    """One operation: whether it is about a request, its arguments, and the shape of its result.

    `since` is the first version of traces that has it.
    """

    on_request: bool
    result: Check[Any]
    required: Mapping[str, Check[Any]] = field(default_factory=dict)
    optional: Mapping[str, Check[Any]] = field(default_factory=dict)
    since: int = 1


_LORA = structure({"name": text, "id": count}, {"path": optional(text)})
_ITEM = structure({"identifier": text, "offset": count, "length": count})

LOOK_UPS = ("get_computed_blocks", "find_longest_cache_hit_per_group")
"""The operations whose blocks an allocation may be given as its hit (KV-MGR-8)."""

OPERATIONS: Mapping[str, OperationShape] = MappingProxyType(
    {
        "new_request": OperationShape(
            True,
            structure({"num_tokens": count, "block_hashes": list_of(hex_text)}),
            {"prompt_token_ids": list_of(integer)},
            {
                "cache_salt": optional(text),
                "lora": optional(_LORA),
                "mm_features": optional(list_of(_ITEM)),
                "skip_reading_prefix_cache": boolean,
                "reports_hits": boolean,
            },
        ),
        "append_tokens": OperationShape(
            True,
            structure(
                {
                    "num_tokens": count,
                    "num_block_hashes": count,
                    "new_block_hashes": list_of(hex_text),
                }
            ),
            {"token_ids": list_of(integer)},
        ),
        "get_computed_blocks": OperationShape(
            True,
            structure(
                {
                    "blocks": BLOCKS,
                    "num_computed_tokens": count,
                    "num_uncached_common_prefix_tokens": optional(count),
                }
            ),
            {},
            {"num_preemptions": count},
        ),
        "find_longest_cache_hit_per_group": OperationShape(
            True,
            structure({"blocks": BLOCKS, "hit_lengths": list_of(count)}),
            {"max_cache_hit_length": integer},
        ),
        "allocate_slots": OperationShape(
            True,
            optional(BLOCKS),
            {"num_computed_tokens": integer, "status": status, "num_new_tokens": integer},
            {
                "num_new_computed_tokens": integer,
                "new_computed_blocks": optional(list_of(list_of(integer))),
                "num_lookahead_tokens": integer,
                "num_external_computed_tokens": integer,
                "delay_cache_blocks": boolean,
                "num_encoder_tokens": integer,
                "full_sequence_must_fit": boolean,
                "reserved_blocks": integer,
                "has_scheduled_reqs": boolean,
                "junction_tokens": count,
                "num_in_flight_tokens": count,
            },
        ),
        "free": OperationShape(True, null),
        "pop_blocks_for_free": OperationShape(True, list_of(count)),
        "free_blocks": OperationShape(False, null, {"block_ids": list_of(integer)}),
        "remove_skipped_blocks": OperationShape(True, null, {"total_computed_tokens": integer}),
        "cache_blocks": OperationShape(
            True, null, {"num_computed_tokens": integer}, {"junction_tokens": count}
        ),
        "cache_partial_block": OperationShape(
            True, boolean, {"group": integer, "num_tokens": integer}, since=2
        ),
        "evict_blocks": OperationShape(False, null, {"block_ids": list_of(integer)}),
        "withdraw": OperationShape(True, list_of(text), {"num_computed_tokens": integer}, since=4),
        "reset_prefix_cache": OperationShape(False, boolean),
        "get_num_common_prefix_blocks": OperationShape(True, list_of(count)),
        "get_block_ids": OperationShape(True, structure({"blocks": BLOCKS, "unhashed": BLOCKS})),
        "get_num_blocks_to_allocate": OperationShape(
            True,
            count,
            {
                "num_tokens": integer,
                "total_computed_tokens": integer,
                "num_tokens_main_model": integer,
            },
            {"num_encoder_tokens": integer, "apply_admission_cap": boolean},
        ),
        "take_new_block_ids": OperationShape(False, list_of(count)),
        "new_step_starts": OperationShape(False, null),
        "take_block_copies": OperationShape(
            False,
            structure({"pairs": BLOCKS, "retained": list_of(count)}),
            since=3,
        ),
        "make_prefix_cache_stats": OperationShape(False, optional(stats)),
        "record_prefix_cache_stats": OperationShape(
            True, null, {"num_hits": count}, {"num_preemptions": count}
        ),
        # Each event is checked by the reader, which knows how the manager writes hashes.
        "take_events": OperationShape(False, list_of(anything)),
    }
)
"""Every operation a record may hold, by name."""


def check_arguments(shape: OperationShape, value: object, where: Where) -> dict[str, Any]:
    """Check that the arguments of an operation have the right types."""
    return checked_members(value, where, shape.required, shape.optional)
