"""An index of engines in another process: its calls as messages, on both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from inspect import signature
from operator import index
from typing import Any, get_type_hints

from kvcheck.play.calls import give_calls
from kvcheck.remote.connection import Connection
from kvcheck.remote.values import carried
from kvspec.errors import FormatError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventHash
from kvspec.files.objects import (
    Check,
    Where,
    anything,
    boolean,
    checked_members,
    hex_bytes,
    integer,
    list_of,
    null,
    optional,
    real,
    text,
)
from kvspec.files.shapes import FORMS, Form, Shape, as_it_is, form_of, tuple_of
from kvspec.fleet import (
    Batch,
    EngineState,
    FleetKey,
    GroupPrefix,
    Heard,
    MediumCleared,
    PrefixIndex,
)

# Values, in both directions. A hash is hexadecimal text, or an int.


def _hash(value: EventHash) -> str | int:
    return value.hex() if isinstance(value, bytes) else value


def _to_hash(value: object, where: Where) -> EventHash:
    return integer(value, where) if isinstance(value, int) else hex_bytes(value, where)


def _time(value: float) -> float | None:
    """Encode a time; null is minus infinity, the time before the first batch."""
    return None if value == -math.inf else carried("time_s", value)


def _to_time(value: object, where: Where) -> float:
    return -math.inf if value is None else real(value, where)


def _event(event: Event | MediumCleared) -> dict[str, Any]:
    """Encode an event with the members that an index reads, under their names in messages."""
    if isinstance(event, AllBlocksCleared | MediumCleared):
        return {"type": "AllBlocksCleared", "medium": getattr(event, "medium", None)}
    kind = type(event).__name__
    return {"type": kind, **_EVENTS[kind].write(event)}


def _to_event(value: Any, where: Where) -> Event | MediumCleared:
    kind = value.get("type") if isinstance(value, dict) else ""
    if not isinstance(kind, str) or kind not in ("AllBlocksCleared", *_EVENTS):
        raise where.member("type").error(f"not one of AllBlocksCleared, {', '.join(_EVENTS)}")
    checks = _EVENTS[kind].required if kind in _EVENTS else {"medium": optional(text)}
    found = checked_members(value, where, {"type": text, **checks}, {})
    if kind == "AllBlocksCleared":
        return AllBlocksCleared() if found["medium"] is None else MediumCleared(found["medium"])
    event: Event = _EVENTS[kind].made(found, where, **_UNSAID[kind])
    return event


def _row(names: str, *checks: Check[Any]) -> Check[list[Any]]:
    """Return a check of a list of these elements."""

    def inner(value: Any, where: Where) -> list[Any]:
        if not isinstance(value, list) or len(value) != len(checks):
            raise where.error(f"not [{names}]")
        return [check(item, where) for check, item in zip(checks, value, strict=True)]

    return inner


_HASHES = Form(list_of(_to_hash), lambda hashes: [*map(_hash, hashes)])
_KEYS = list_of(_row("medium, group, hash, copies", text, integer, _to_hash, integer))
_GROUP = _row(
    "group, hashes, block_size, num_last_blocks",
    *(integer, _HASHES.read, integer, optional(integer)),
)
_VALUES: Mapping[Any, Form] = {
    **FORMS,
    int: Form(integer, index),
    float: Form(_to_time, _time),
    bool: Form(boolean, as_it_is),
    type(None): Form(null, as_it_is),
    EventHash: Form(_to_hash, _hash),
    Heard: Form(lambda value, where: Heard(text(value, where)), str),
    tuple[int, float]: Form(
        lambda value, where: tuple(_row("number, time", integer, _to_time)(value, where)),
        lambda last: [last[0], _time(last[1])],
    ),
    "events": Form(tuple_of(_to_event), lambda events: [*map(_event, events)]),
    Mapping[FleetKey, int]: Form(
        lambda value, where: {tuple(key): copies for *key, copies in _KEYS(value, where)},
        lambda keys: [[*key[:2], _hash(key[2]), copies] for key, copies in keys.items()],
    ),
    GroupPrefix: Form(
        lambda value, where: GroupPrefix(*_GROUP(value, where)),
        lambda g: [g.group, _HASHES.write(g.hashes), g.block_size_tokens, g.num_last_blocks],
    ),
}
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    "BlockRemoved": {},
    "BlockStored": {
        **dict.fromkeys(("lora_id", "lora_name", "extra_keys", "sliding_window_tokens")),
        "spec_kind": "",
    },
}
"""Members of events that no index reads."""

_EVENTS: Mapping[str, Shape[Any]] = {
    cls.__name__: Shape(
        cls,
        {"group": "group_idx", "block_size_tokens": "block_size"},
        forms=_VALUES,
        sometimes=(),
        elsewhere=(*_UNSAID[cls.__name__], "lookahead_token_ids", "source"),
    )
    for cls in (BlockRemoved, BlockStored)
}
_OF_INDEX: Mapping[Any, Form] = {
    **_VALUES,
    EngineState: Shape(EngineState, forms=_VALUES, sometimes=()).form,
}
ARGUMENTS: Mapping[str, Form] = {
    "batch": Shape(Batch, forms=_VALUES, sometimes=()).form,
    "state": _OF_INDEX[EngineState],
    "hashes": _HASHES,
    "groups": form_of(tuple[GroupPrefix, ...], _VALUES),
}
"""Arguments that are encoded, by name; others are sent as they are, for the index to judge."""

RESULTS: Mapping[str, Form] = {
    name: form_of(get_type_hints(call)["return"], _OF_INDEX)
    for name, call in vars(PrefixIndex).items()
    if not name.startswith("_") and callable(call)
}
"""Every call but `engines`, a property, with the form of its result."""


def read(name: str, given: object, where: Where) -> dict[str, Any]:
    """Decode the arguments of a call, on the server."""
    wanted = () if name == "engines" else list(signature(getattr(PrefixIndex, name)).parameters)[1:]
    checks = {n: ARGUMENTS[n].read if n in ARGUMENTS else anything for n in wanted}
    return checked_members(given, where, checks, {})


def perform(index: PrefixIndex, name: str, found: Mapping[str, Any]) -> Any:
    """Make a call of an index with decoded arguments, on the server."""
    if name == "engines":
        return list(index.engines)
    return RESULTS[name].write(getattr(index, name)(**found))


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
        return tuple(self._call("engines", {}))

    def _call(self, name: str, given: Mapping[str, Any]) -> Any:
        check = list_of(text) if name == "engines" else RESULTS[name].read
        sent = {
            n: ARGUMENTS[n].write(v) if n in ARGUMENTS else carried(n, v) for n, v in given.items()
        }
        args = {"index": self._handle, "fn": name, "input": sent}
        found = self._connection.call("index", args=args)
        try:
            return check(found, Where("answer", field="result"))
        except (FormatError, ValueError) as error:
            raise self._connection.nonsense(str(error)) from None


give_calls(RemoteIndex, PrefixIndex, RESULTS)
