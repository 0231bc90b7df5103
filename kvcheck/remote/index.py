"""An index of engines in another process: its calls as messages, on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any

from kvcheck.remote.connection import Connection
from kvcheck.remote.values import carried
from kvspec._json import (
    Check,
    Where,
    anything,
    boolean,
    checked_members,
    hex_bytes,
    integer,
    list_of,
    null,
    object_of,
    optional,
    real,
    text,
)
from kvspec.errors import FormatError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventHash
from kvspec.fleet import (
    Batch,
    EngineState,
    GroupPrefix,
    Heard,
    IndexCapabilities,
    MediumCleared,
    PrefixIndex,
)

_LOCAL = frozenset({"is_stream", "has_replays", "checks_types"})
"""Members of capabilities about what no message carries."""


def encode_index_capabilities(can: IndexCapabilities) -> dict[str, Any]:
    """Encode what differs from a whole index."""
    values = {each.name: getattr(can, each.name) for each in fields(can) if each.name not in _LOCAL}
    less = {n: each for n, each in values.items() if each != getattr(IndexCapabilities(), n)}
    return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in less.items()}


def decode_index_capabilities(value: Mapping[str, Any]) -> IndexCapabilities:
    """Decode the member `index` of hello's reply; unknown members are ignored."""
    known = {each.name for each in fields(IndexCapabilities)} - _LOCAL
    given: dict[str, Any] = {
        name: frozenset(each) if isinstance(each, list) else each
        for name, each in value.items()
        if name in known
    }
    return IndexCapabilities(**given, checks_types=False)


# Values, in both directions. A hash is hexadecimal text, or an int.


def _hash(value: EventHash) -> str | int:
    return value.hex() if isinstance(value, bytes) else value


def _to_hash(value: object, where: Where) -> EventHash:
    return integer(value, where) if isinstance(value, int) else hex_bytes(value, where)


def _hashes(hashes: Sequence[EventHash]) -> list[str | int]:
    return [_hash(each) for each in hashes]


def _time(value: float) -> float | None:
    """Encode a time; null is minus infinity, the time before the first batch."""
    return None if value == -math.inf else carried("time_s", value)


def _to_time(value: object, where: Where) -> float:
    return -math.inf if value is None else real(value, where)


def _event(event: Event | MediumCleared) -> dict[str, Any]:
    """Encode an event with the members that an index reads, under their names in messages."""
    if isinstance(event, AllBlocksCleared | MediumCleared):
        return {"type": "AllBlocksCleared", "medium": getattr(event, "medium", None)}
    found: dict[str, Any] = {
        "type": type(event).__name__,
        "block_hashes": _hashes(event.block_hashes),
        "medium": event.medium,
        "group_idx": event.group,
    }
    if isinstance(event, BlockRemoved):
        return found
    parent = event.parent_block_hash
    return found | {
        "parent_block_hash": None if parent is None else _hash(parent),
        "token_ids": list(event.token_ids),
        "block_size": event.block_size_tokens,
        "is_report": event.is_report,
    }


_HASHES = list_of(_to_hash)
_REMOVED: Mapping[str, Check[Any]] = {"block_hashes": _HASHES, "medium": text, "group_idx": integer}
EVENTS: Mapping[str, Mapping[str, Check[Any]]] = {
    "AllBlocksCleared": {"medium": optional(text)},
    "BlockRemoved": _REMOVED,
    "BlockStored": {
        **_REMOVED,
        "parent_block_hash": optional(_to_hash),
        "token_ids": list_of(integer),
        "block_size": integer,
        "is_report": boolean,
    },
}


def _to_event(value: Any, where: Where) -> Event | MediumCleared:
    kind = value.get("type") if isinstance(value, dict) else ""
    if not isinstance(kind, str) or kind not in EVENTS:
        raise where.member("type").error(f"not one of {', '.join(EVENTS)}")
    found = checked_members(value, where, {"type": text, **EVENTS[kind]}, {})
    if kind == "AllBlocksCleared":
        return AllBlocksCleared() if found["medium"] is None else MediumCleared(found["medium"])
    hashes, medium, group = tuple(found["block_hashes"]), found["medium"], found["group_idx"]
    if kind == "BlockRemoved":
        return BlockRemoved(hashes, medium, group)
    tokens = tuple(found["token_ids"])
    parent, size, is_report = (found[n] for n in ("parent_block_hash", "block_size", "is_report"))
    others = (None, None, medium, None, group, "", None)
    return BlockStored(hashes, parent, tokens, size, *others, is_report=is_report)


def _batch(batch: Batch) -> dict[str, Any]:
    events = [_event(each) for each in batch.events]
    return {"number": batch.number, "time_s": _time(batch.time_s), "events": events}


def _to_batch(value: object, where: Where) -> Batch:
    members = {"number": integer, "time_s": _to_time, "events": list_of(_to_event)}
    found = checked_members(value, where, members, {})
    return Batch(found["number"], found["time_s"], tuple(found["events"]))


def _state(state: EngineState) -> dict[str, Any]:
    keys = [[*key[:2], _hash(key[2]), copies] for key, copies in state.keys.items()]
    time_s = _time(state.time_s)
    return {"number": state.number, "time_s": time_s, "is_whole": state.is_whole, "keys": keys}


def _to_state(value: object, where: Where) -> EngineState:
    members = {"number": integer, "time_s": _to_time, "is_whole": boolean, "keys": list_of(_to_key)}
    found = checked_members(value, where, members, {})
    return EngineState(found["number"], found["time_s"], dict(found["keys"]), found["is_whole"])


def _to_key(value: object, where: Where) -> tuple[tuple[str, int, EventHash], int]:
    if not isinstance(value, list) or len(value) != 4:
        raise where.error("not [medium, group, hash, copies]")
    key = (text(value[0], where), integer(value[1], where), _to_hash(value[2], where))
    return key, integer(value[3], where)


def _group(group: GroupPrefix) -> list[Any]:
    return [group.group, _hashes(group.hashes), group.block_size_tokens, group.num_last_blocks]


def _to_group(value: object, where: Where) -> GroupPrefix:
    if not isinstance(value, list) or len(value) != 4:
        raise where.error("not [group, hashes, block_size, num_last_blocks]")
    size, last = integer(value[2], where), optional(integer)(value[3], where)
    return GroupPrefix(integer(value[0], where), _HASHES(value[1], where), size, last)


def _pair(value: object, where: Where) -> tuple[Any, Any]:
    found = list_of(_to_time)(value, where)
    if len(found) != 2:
        raise where.error("not two numbers")
    return found[0], found[1]


SENT: Mapping[str, Callable[[Any], Any]] = {
    "batch": _batch,
    "state": _state,
    "hashes": _hashes,
    "groups": lambda groups: [_group(each) for each in groups],
}
"""Arguments that are encoded, by name; others are sent as they are."""

READ: Mapping[str, Check[Any]] = {
    "engine": anything,  # for the implementation to judge
    "batch": _to_batch,
    "state": _to_state,
    "hashes": _HASHES,
    "group": anything,
    "medium": anything,
    "groups": list_of(_to_group),
}
RESULTS: Mapping[str, Check[Any]] = {
    "hear": lambda value, where: Heard(text(value, where)),
    "restore": boolean,
    "skip": boolean,
    "forget": null,
    "missing": optional(_pair),
    "last": _pair,
    "state": _to_state,
    "prefixes": object_of(integer),
    "hits": object_of(integer),
}
"""Every call but `engines`, a property, with the check of its result."""


def read(name: str, given: object, where: Where) -> dict[str, Any]:
    """Decode the arguments of a call, on the server."""
    wanted = () if name == "engines" else signature(getattr(PrefixIndex, name)).parameters
    return checked_members(given, where, {each: READ[each] for each in wanted if each in READ}, {})


def perform(index: PrefixIndex, name: str, found: Mapping[str, Any]) -> Any:
    """Make a call of an index with decoded arguments, on the server."""
    if name == "engines":
        return list(index.engines)
    result = getattr(index, name)(**found)
    if name == "state":
        return _state(result)
    if name == "last":
        return [result[0], _time(result[1])]
    return dict(result) if isinstance(result, Mapping) else result


class RemoteIndex:
    """See `kvspec.fleet.PrefixIndex` for the calls, which are added below."""

    def __init__(self, connection: Connection, removed_event_per: str, max_waiting: int) -> None:
        self._connection = connection
        self._handle = connection.new_handle()
        options = {"removed_event_per": removed_event_per, "max_waiting": max_waiting}
        sent = {name: carried(name, value) for name, value in options.items()}
        connection.call("make_index", args={"index": self._handle, **sent})
        connection.forget(self, "indexes", self._handle)

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(self._call("engines", {}, list_of(text)))

    def _call(self, name: str, given: Mapping[str, Any], check: Check[Any]) -> Any:
        args = {"index": self._handle, "fn": name, "input": given}
        found = self._connection.call("index", args=args)
        try:
            return check(found, Where("answer", field="result"))
        except (FormatError, ValueError) as error:
            raise self._connection.nonsense(str(error)) from None


def _method(name: str, check: Check[Any]) -> Callable[..., Any]:
    declared = getattr(PrefixIndex, name)
    arguments = signature(declared)

    @wraps(declared)
    def ask(self: RemoteIndex, *given: Any, **named: Any) -> Any:
        bound = arguments.bind(self, *given, **named)
        bound.apply_defaults()
        values = list(bound.arguments.items())[1:]
        sent = {n: SENT[n](v) if n in SENT else carried(n, v) for n, v in values}
        return self._call(name, sent, check)

    return ask


for _name, _check in RESULTS.items():
    setattr(RemoteIndex, _name, _method(_name, _check))
