"""Events and statistics as JSON, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvspec.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventHash,
    ExtraKey,
    ExtraKeys,
)
from kvspec.files.objects import (
    Where,
    checked_members,
    count,
    hex_bytes,
    integer,
    list_of,
    optional,
    shown,
    text,
)
from kvspec.files.shapes import FORMS, Form, JSONObject, Shape, as_it_is, form_of
from kvspec.stats import PrefixCacheStats

UINT64_MAX = 2**64 - 1


def encode_event(event: Event) -> JSONObject:
    """Encode as `{"type": class name, …}`; bytes as hex digits, 64-bit hashes as decimal texts."""
    name = type(event).__name__
    return {"type": name, **_EVENTS[False][name].write(event)}


def decode_event(value: object, where: Where, *, int_hashes: bool) -> Event:
    """Decode an event. `int_hashes`: its hashes are decimal strings (the manager's
    `int_event_hashes`).

    The text alone cannot decide: `"1234567890123456"` may be either.
    """
    if not isinstance(value, dict) or "type" not in value:
        raise where.member("type").error("missing; an event is an object with a type")
    shape = _EVENTS[int_hashes].get(value["type"]) if isinstance(value["type"], str) else None
    if shape is None:
        problem = "is not BlockStored, BlockRemoved or AllBlocksCleared"
        raise where.member("type").error(f"{shown(value['type'])} {problem}")
    event: Event = shape.read({name: value[name] for name in value if name != "type"}, where)
    return event


def _encode_hash(block_hash: EventHash) -> str:
    return block_hash.hex() if isinstance(block_hash, bytes) else str(block_hash)


def _decode_int_hash(value: object, where: Where) -> int:
    """Decode a 64-bit hash from a decimal string (a JSON number that large would lose digits)."""
    digits = text(value, where)
    if not re.fullmatch("0|[1-9][0-9]{0,19}", digits) or int(digits) > UINT64_MAX:
        raise where.error(f"{shown(digits)} is not a decimal number in 0 … 2^64 - 1")
    return int(digits)


def _encode_extra(key: ExtraKey) -> Any:
    """Encode text as text, an item as `[identifier, offset]`, a digest as `{"hex": digits}`."""
    if isinstance(key, bytes):
        return {"hex": key.hex()}
    return key if isinstance(key, str) else [key[0], key[1]]


def _decode_extra(value: object, where: Where) -> ExtraKeys:
    """Decode the extra keys of one block, or null."""
    if value is None:
        return None
    return tuple(list_of(_decode_extra_key)(value, where))


def _decode_extra_key(value: object, where: Where) -> ExtraKey:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        found: bytes = checked_members(value, where, {"hex": hex_bytes}, {})["hex"]
        return found
    if isinstance(value, list) and len(value) == 2:
        return text(value[0], where.item(0)), integer(value[1], where.item(1))
    raise where.error(f"{shown(value)} is not a text, an object or a list of identifier and offset")


def _shapes(hash_form: Form) -> dict[str, Shape[Any]]:
    """Return the shape of each event with its hashes in this form."""
    forms: dict[Any, Form] = {
        **FORMS,
        int: Form(count, as_it_is),
        EventHash: hash_form,
        ExtraKeys: Form(
            _decode_extra, lambda keys: None if keys is None else [*map(_encode_extra, keys)]
        ),
        "lora_id": Form(optional(integer), as_it_is),
    }
    forms["lookahead_token_ids"] = form_of(tuple[tuple[int, ...], ...], forms)  # left out, not null
    stored = {
        "block_size_tokens": "block_size",
        "group": "group_idx",
        "spec_kind": "kv_cache_spec_kind",
        "sliding_window_tokens": "kv_cache_spec_sliding_window",
    }
    later = ("lookahead_token_ids", "is_report")
    return {
        "BlockStored": Shape(
            BlockStored, stored, forms=forms, sometimes=later, elsewhere=("source",)
        ),
        "BlockRemoved": Shape(BlockRemoved, {"group": "group_idx"}, forms=forms),
        "AllBlocksCleared": Shape(AllBlocksCleared),
    }


_EVENTS: Mapping[bool, Mapping[str, Shape[Any]]] = {
    False: _shapes(Form(hex_bytes, _encode_hash)),
    True: _shapes(Form(_decode_int_hash, _encode_hash)),
}

_STATS = Shape(
    PrefixCacheStats,
    {
        "queries_tokens": "queries",
        "hits_tokens": "hits",
        "preempted_queries_tokens": "preempted_queries",
        "preempted_hits_tokens": "preempted_hits",
    },
    forms={**FORMS, int: Form(count, as_it_is)},
    sometimes=(),
)
encode_stats = _STATS.write
decode_stats = _STATS.read
