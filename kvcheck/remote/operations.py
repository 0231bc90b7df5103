"""Every message of the protocol: the handles it names, its arguments, the shape of its result.

Operations of records are taken from there, except that the scheduler's attributes are sent in
`set`, not as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from operator import index
from typing import Any, get_type_hints

from kvcheck.remote.values import EMBEDDINGS, decode_sample
from kvspec.codec import decode_manager_config
from kvspec.event_codec import decode_stats
from kvspec.files.objects import (
    Check,
    Where,
    anything,
    boolean,
    count,
    hex_bytes,
    integer,
    list_of,
    members,
    null,
    object_of,
    optional,
    real,
    structure,
    text,
)
from kvspec.files.shapes import FORMS, Form, Shape, as_it_is, form_of, tuple_of
from kvspec.offload import Found, OffloadCounts, OffloadManager, PreparedStore, WholeOffloadManager
from kvspec.operations import OPERATIONS
from kvspec.snapshot_codec import decode_snapshot

PROTOCOL_VERSION = 1

OWNED_BY_SCHEDULER = (
    *("num_computed_tokens", "num_preemptions", "status"),
    *("junction_tokens", "num_in_flight_tokens"),
)
"""Attributes of a request that any message about it may set before the call."""

_TAKEN_FROM_RECORDS = frozenset(OPERATIONS) - {"new_request"}


@dataclass(frozen=True)
class MessageShape:
    """`handles`: `manager` and `request`, as far as the message names them.

    `required` and `optional`: the arguments, and what a call that succeeds has there. A message may
    have any value: it is for the implementation to judge.
    """

    handles: tuple[str, ...]
    result: Check[Any]
    required: Mapping[str, Check[Any]] = field(default_factory=dict)
    optional: Mapping[str, Check[Any]] = field(default_factory=dict)


_MANAGER = ("manager",)
_REQUEST = ("manager", "request")


def shown_text(value: object, where: Where) -> str:
    found = text(value, where)
    if not found.isprintable():
        raise where.error(f"{found!r} has characters that cannot be shown")
    return found


HELLO_RESULT: Mapping[str, Check[Any]] = {
    "protocol": integer,
    "name": shown_text,
    "version": shown_text,
    "spec_types": list_of(text),
    "hash_functions": list_of(text),
    "features": list_of(text),
}
"""Required members of hello's reply; others are ignored, so that later versions may add some."""

HELLO_MORE: Mapping[str, Check[Any]] = {
    "min_block_size": count,
    "pipelining": boolean,
    "extra_keys": list_of(text),
    "values": object_of(list_of(text)),
    "limits": object_of(count),
    "edition": shown_text,
    "index": object_of(anything),
    "offload": object_of(anything),
}


def check_hello(answer: Any, where: Where) -> dict[str, Any]:
    """Check the known members of hello's reply. Raises FormatError or TypeError."""
    found = members(answer, where, HELLO_RESULT, answer)
    for member, check in {**HELLO_RESULT, **HELLO_MORE}.items():
        if member in found:
            check(found[member], where.member(member))
    if found["protocol"] != PROTOCOL_VERSION:
        raise where.member("protocol").error(f"{found['protocol']} was not offered")
    return found


def found_word(value: object, where: Where) -> Found:
    """Check the result of a look-up in a tier."""
    word = text(value, where)
    if word not in tuple(Found):
        raise where.error(f"{word!r} is not one of {', '.join(Found)}")
    return Found(word)


_CREATED = structure(
    {"scheduler_block_size": count, "hash_block_size": count, "none_hash": hex_bytes}
)


def _shape(handles: tuple[str, ...], result: Check[Any], **required: Check[Any]) -> MessageShape:
    return MessageShape(handles, result, required)


def _of_record(name: str) -> MessageShape:
    """Return the shape of an operation that records also have."""
    recorded = OPERATIONS[name]
    owned = frozenset(OWNED_BY_SCHEDULER)
    if name in ("cache_blocks", "withdraw"):  # an argument has the name of an attribute
        owned -= {"num_computed_tokens"}
    return MessageShape(
        _REQUEST if recorded.on_request else _MANAGER,
        recorded.result,
        {member: recorded.required[member] for member in recorded.required if member not in owned},
        {member: recorded.optional[member] for member in recorded.optional if member not in owned},
    )


QUESTIONS = frozenset({"get_usage", "snapshot"})
"""Messages about a manager alone that change nothing."""

_HANDLES = list_of(integer)
_KEYS = list_of(hex_bytes)
_CHUNKS: Mapping[Any, Form] = {
    **FORMS,
    int: Form(count, index),
    type(None): Form(null, as_it_is),
    Found: Form(found_word, str),
    tuple[tuple[str, int], ...]: Form(tuple_of(tuple_of(anything)), lambda v: [*map(list, v)]),
}
_CHUNK_VALUES: Mapping[Any, Form] = {
    **_CHUNKS,
    PreparedStore: Shape(PreparedStore, forms=_CHUNKS, sometimes=()).form,
    OffloadCounts: Shape(OffloadCounts, forms=_CHUNKS, sometimes=("tenants",)).form,
}
OFFLOAD_RESULTS: Mapping[str, Form] = {
    name: form_of(get_type_hints(call)["return"], _CHUNK_VALUES)
    for name, call in (*vars(OffloadManager).items(), *vars(WholeOffloadManager).items())
    if not name.startswith("_")
}
"""Every call of an offload manager, with the form of its result."""

_OFFLOAD_ARGUMENTS: Mapping[str, Check[Any]] = {
    **{"key": hex_bytes, "keys": _KEYS, "failed": _KEYS, "below": list_of(found_word)},
    **{"request_id": text, "tenant": text, "priority": integer},
    **{"number": count, "success": boolean},
}


def _of_offload(name: str) -> MessageShape:
    """Return the shape of a call of an offload manager, whose handle is its `manager`.

    A look-up has also what the lower tiers say; keyword arguments may be left out.
    """
    _, *declared = signature(getattr(WholeOffloadManager, name)).parameters.values()
    named = {each.name: _OFFLOAD_ARGUMENTS[each.name] for each in declared}
    more = {each.name: named.pop(each.name) for each in declared if each.kind is each.KEYWORD_ONLY}
    if name == "lookup":
        named["below"] = _OFFLOAD_ARGUMENTS["below"]
    return MessageShape(_MANAGER, OFFLOAD_RESULTS[name].read, named, more)


MESSAGES: Mapping[str, MessageShape] = {
    "hello": _shape((), anything, protocol=_HANDLES, client=text),
    "create_manager": _shape(
        _MANAGER, _CREATED, config=decode_manager_config, check_invariants=boolean
    ),
    "clone_manager": _shape(_MANAGER, null, copy=count),
    "restore_manager": _shape(
        _MANAGER, _CREATED, config=decode_manager_config, snapshot=decode_snapshot
    ),
    "make_request": MessageShape(
        _REQUEST,
        OPERATIONS["new_request"].result,
        {"request_id": text, **OPERATIONS["new_request"].required},
        {**OPERATIONS["new_request"].optional, "prompt_embeddings": optional(EMBEDDINGS)},
    ),
    "drop": MessageShape(
        (),
        null,
        {"managers": _HANDLES, "requests": _HANDLES, "windows": _HANDLES},
        {"indexes": _HANDLES},
    ),
    **{name: _of_record(name) for name in sorted(_TAKEN_FROM_RECORDS)},
    "cache_partial_block": _shape(_REQUEST, boolean, group=integer, num_tokens=integer),
    "take_residency_samples": _shape(_MANAGER, tuple_of(decode_sample)),
    "get_usage": _shape(_MANAGER, structure({"num_free_blocks": integer, "usage": real})),
    "snapshot": _shape(_MANAGER, decode_snapshot),
    "make_window": _shape((), null, window=count, max_requests=integer),
    "observe": _shape(
        (),
        structure({"num_requests": integer, "hit_rate": real}),
        window=count,
        stats=decode_stats,
    ),
    "make_index": _shape((), null, index=count, removed_event_per=text, max_waiting=integer),
    "index": _shape((), anything, index=count, fn=text, input=object_of(anything)),
    "plan": _shape((), anything, fn=text, input=object_of(anything)),
    "make_offload": MessageShape(
        _MANAGER,
        null,
        {"num_chunks": count, "num_lower": count, "order": text},
        {
            **{"store_after": count, "quotas": object_of(count)},
            **{"write_back": boolean, "ttl_steps": count},
        },
    ),
    **{f"offload_{name}": _of_offload(name) for name in OFFLOAD_RESULTS},
}
