"""The operations of a record: their names, arguments and the shape of their results.

`spec/records.md` says what each means; the reader checks files against this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any

from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.event_codec import decode_stats, encode_event, encode_stats
from kvspec.files.objects import (
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
from kvspec.files.shapes import FORMS, Form, Shape, as_it_is, form_of, tuple_of
from kvspec.inside import BlockCopies
from kvspec.request import RequestStatus
from kvspec.stats import PrefixCacheStats

_COUNTS: Mapping[Any, Form] = {**FORMS, int: Form(count, index)}
_LISTS = form_of(tuple[tuple[int, ...], ...], _COUNTS)
_BLOCKS = Form(tuple_of(tuple_of(count), KVCacheBlocks), lambda blocks: blocks.to_lists())
"""Block ids, one list per group."""

_FORMS: Mapping[Any, Form] = {
    **_COUNTS,
    bool: Form(boolean, as_it_is),
    KVCacheBlocks: _BLOCKS,
    PrefixCacheStats: Form(decode_stats, encode_stats),
}


def status(value: object, where: Where) -> str:
    """Check the name of a request status."""
    name = text(value, where)
    if name not in RequestStatus.__members__:
        raise where.error(f"{name!r} is not one of {', '.join(RequestStatus.__members__)}")
    return name


@dataclass(frozen=True)
class OperationShape:
    """One operation: whether it is about a request, its arguments, and the form of its result.

    `since` is the first version of traces that has it.
    """

    on_request: bool
    answer: Form
    required: Mapping[str, Check[Any]] = field(default_factory=dict)
    optional: Mapping[str, Check[Any]] = field(default_factory=dict)
    since: int = 1

    @property
    def result(self) -> Check[Any]:
        """The check of its result, which returns it as the manager does."""
        return self.answer.read


def _in_members(**members: Check[Any]) -> Form:
    """Return the form of a result that is an object for the caller, too."""
    return Form(structure(members), as_it_is)


_COUNT, _YES_OR_NO = _FORMS[int], _FORMS[bool]
_INTS, _NAMES = form_of(tuple[int, ...], _FORMS), form_of(tuple[str, ...])
_NOTHING = Form(null, lambda answer: None)
_HIT = Shape(
    PrefixHit,
    {
        "hit_length_tokens": "num_computed_tokens",
        "uncached_common_prefix_tokens": "num_uncached_common_prefix_tokens",
    },
    forms=_FORMS,
    sometimes=(),
)
_HITS = Shape(GroupHits, {"hit_lengths_tokens": "hit_lengths"}, forms=_FORMS)


_LORA = structure({"name": text, "id": count}, {"path": optional(text)})
_ITEM = structure({"identifier": text, "offset": count, "length": count})

LOOK_UPS = ("get_computed_blocks", "find_longest_cache_hit_per_group")
"""The operations whose blocks an allocation may be given as its hit (KV-MGR-8)."""

OPERATIONS: Mapping[str, OperationShape] = {
    "new_request": OperationShape(
        True,
        _in_members(num_tokens=count, block_hashes=list_of(hex_text)),
        {"prompt_token_ids": list_of(integer)},
        {
            "cache_salt": optional(text),
            "lora": optional(_LORA),
            "mm_features": optional(list_of(_ITEM)),
            "skip_reading_prefix_cache": boolean,
            "reports_hits": boolean,
            "priority": count,
        },
    ),
    "append_tokens": OperationShape(
        True,
        _in_members(num_tokens=count, num_block_hashes=count, new_block_hashes=list_of(hex_text)),
        {"token_ids": list_of(integer)},
    ),
    "get_computed_blocks": OperationShape(
        True,
        _HIT.form,
        {},
        {"num_preemptions": count},
    ),
    "find_longest_cache_hit_per_group": OperationShape(
        True,
        _HITS.form,
        {"max_cache_hit_length": integer},
    ),
    "allocate_slots": OperationShape(
        True,
        form_of(KVCacheBlocks | None, _FORMS),
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
    "free": OperationShape(True, _NOTHING),
    "pop_blocks_for_free": OperationShape(True, _INTS),
    "free_blocks": OperationShape(False, _NOTHING, {"block_ids": list_of(integer)}),
    "remove_skipped_blocks": OperationShape(True, _NOTHING, {"total_computed_tokens": integer}),
    "cache_blocks": OperationShape(
        True, _NOTHING, {"num_computed_tokens": integer}, {"junction_tokens": count}
    ),
    "cache_partial_block": OperationShape(
        True, _YES_OR_NO, {"group": integer, "num_tokens": integer}, since=2
    ),
    "evict_blocks": OperationShape(False, _NOTHING, {"block_ids": list_of(integer)}),
    "withdraw": OperationShape(True, _NAMES, {"num_computed_tokens": integer}, since=4),
    "reset_prefix_cache": OperationShape(False, _YES_OR_NO),
    "get_num_common_prefix_blocks": OperationShape(True, _INTS),
    "get_block_ids": OperationShape(True, _in_members(blocks=_BLOCKS.read, unhashed=_LISTS.read)),
    "get_num_blocks_to_allocate": OperationShape(
        True,
        _COUNT,
        {
            "num_tokens": integer,
            "total_computed_tokens": integer,
            "num_tokens_main_model": integer,
        },
        {"num_encoder_tokens": integer, "apply_admission_cap": boolean},
    ),
    "take_new_block_ids": OperationShape(False, _INTS),
    "new_step_starts": OperationShape(False, _NOTHING),
    "take_block_copies": OperationShape(
        False,
        Shape(BlockCopies, forms=_FORMS, sometimes=()).form,
        since=3,
    ),
    "make_prefix_cache_stats": OperationShape(False, form_of(PrefixCacheStats | None, _FORMS)),
    "record_prefix_cache_stats": OperationShape(
        True, _NOTHING, {"num_hits": count}, {"num_preemptions": count}
    ),
    # Each event is checked by the reader, which knows how the manager writes hashes.
    "take_events": OperationShape(
        False, Form(list_of(anything), lambda events: [*map(encode_event, events)])
    ),
}
"""Every operation a record may hold, by name."""


def check_arguments(shape: OperationShape, value: object, where: Where) -> dict[str, Any]:
    """Check that the arguments of an operation have the right types."""
    return checked_members(value, where, shape.required, shape.optional)
