"""Events and statistics as JSON, and back."""

from __future__ import annotations

import re
from typing import Any

from kvspec._json import (
    Check,
    Where,
    boolean,
    checked_members,
    count,
    hex_bytes,
    integer,
    list_of,
    optional,
    shown,
    text,
)
from kvspec.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventHash,
    ExtraKey,
    ExtraKeys,
)
from kvspec.stats import PrefixCacheStats

UINT64_MAX = 2**64 - 1


def encode_event(event: Event) -> dict[str, Any]:
    """Encode as `{"type": class name, …}`; bytes as hex digits, 64-bit hashes as decimal texts."""
    if isinstance(event, BlockStored):
        parent = event.parent_block_hash
        ahead = event.lookahead_token_ids
        return {
            "type": "BlockStored",
            "block_hashes": [_encode_hash(block_hash) for block_hash in event.block_hashes],
            "parent_block_hash": None if parent is None else _encode_hash(parent),
            "token_ids": list(event.token_ids),
            "block_size": event.block_size_tokens,
            "lora_id": event.lora_id,
            "lora_name": event.lora_name,
            "medium": event.medium,
            "extra_keys": _encode_extra_keys(event.extra_keys),
            "group_idx": event.group,
            "kv_cache_spec_kind": event.spec_kind,
            "kv_cache_spec_sliding_window": event.sliding_window_tokens,
            **({} if ahead is None else {"lookahead_token_ids": [list(each) for each in ahead]}),
            **({"is_report": True} if event.is_report else {}),
        }
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [_encode_hash(block_hash) for block_hash in event.block_hashes],
            "medium": event.medium,
            "group_idx": event.group,
        }
    return {"type": "AllBlocksCleared"}


def decode_event(value: object, where: Where, *, int_hashes: bool) -> Event:
    """Decode an event. `int_hashes`: its hashes are decimal strings (the manager's
    `int_event_hashes`).

    The text alone cannot decide: `"1234567890123456"` may be either.
    """
    hash_check: Check[EventHash] = _decode_int_hash if int_hashes else hex_bytes
    if not isinstance(value, dict) or "type" not in value:
        raise where.member("type").error("missing; an event is an object with a type")
    if value["type"] == "AllBlocksCleared":
        checked_members(value, where, {"type": text}, {})
        return AllBlocksCleared()
    if value["type"] == "BlockRemoved":
        removed = checked_members(
            value,
            where,
            {
                "type": text,
                "block_hashes": list_of(hash_check),
                "medium": text,
                "group_idx": count,
            },
            {},
        )
        return BlockRemoved(tuple(removed["block_hashes"]), removed["medium"], removed["group_idx"])
    if value["type"] == "BlockStored":
        return _decode_stored(value, where, hash_check)
    raise where.member("type").error(
        f"{shown(value['type'])} is not BlockStored, BlockRemoved or AllBlocksCleared"
    )


def _decode_stored(value: object, where: Where, hash_check: Check[EventHash]) -> BlockStored:
    """Decode a BlockStored event."""
    found = checked_members(
        value,
        where,
        {
            "type": text,
            "block_hashes": list_of(hash_check),
            "parent_block_hash": optional(hash_check),
            "token_ids": list_of(count),
            "block_size": count,
            "lora_id": optional(integer),
            "lora_name": optional(text),
            "medium": text,
            "extra_keys": optional(list_of(_decode_extra)),
            "group_idx": count,
            "kv_cache_spec_kind": text,
            "kv_cache_spec_sliding_window": optional(count),
        },
        {"lookahead_token_ids": list_of(list_of(count)), "is_report": boolean},
    )
    extra_keys = found["extra_keys"]
    ahead = found.get("lookahead_token_ids")
    return BlockStored(
        block_hashes=tuple(found["block_hashes"]),
        parent_block_hash=found["parent_block_hash"],
        token_ids=tuple(found["token_ids"]),
        block_size_tokens=found["block_size"],
        lora_id=found["lora_id"],
        lora_name=found["lora_name"],
        medium=found["medium"],
        extra_keys=None if extra_keys is None else tuple(extra_keys),
        group=found["group_idx"],
        spec_kind=found["kv_cache_spec_kind"],
        sliding_window_tokens=found["kv_cache_spec_sliding_window"],
        lookahead_token_ids=None if ahead is None else tuple([tuple(each) for each in ahead]),
        is_report=found.get("is_report", False),
    )


def encode_stats(stats: PrefixCacheStats) -> dict[str, Any]:
    """Encode the counters under their names in records."""
    return {
        "reset": stats.reset,
        "requests": stats.requests,
        "queries": stats.queries_tokens,
        "hits": stats.hits_tokens,
        "preempted_requests": stats.preempted_requests,
        "preempted_queries": stats.preempted_queries_tokens,
        "preempted_hits": stats.preempted_hits_tokens,
    }


def decode_stats(value: object, where: Where) -> PrefixCacheStats:
    """Decode the counters of one interval."""
    names = encode_stats(PrefixCacheStats())
    found = checked_members(
        value, where, {name: boolean if name == "reset" else count for name in names}, {}
    )
    return PrefixCacheStats(*(found[name] for name in names))


def _encode_hash(block_hash: EventHash) -> str:
    return block_hash.hex() if isinstance(block_hash, bytes) else str(block_hash)


def _decode_int_hash(value: object, where: Where) -> int:
    """Decode a 64-bit hash from a decimal string (a JSON number that large would lose digits)."""
    digits = text(value, where)
    if not re.fullmatch("0|[1-9][0-9]{0,19}", digits) or int(digits) > UINT64_MAX:
        raise where.error(f"{shown(digits)} is not a decimal number in 0 … 2^64 - 1")
    return int(digits)


def _encode_extra_keys(extra_keys: tuple[ExtraKeys, ...] | None) -> list[Any] | None:
    if extra_keys is None:
        return None
    return [None if keys is None else [_encode_extra(key) for key in keys] for keys in extra_keys]


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
