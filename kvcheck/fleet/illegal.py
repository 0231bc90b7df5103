"""Illegal calls of an index, none of which may change anything (KV-FLEET-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.fleet.engine import events_of
from kvspec.fleet import Batch, EngineState, GroupPrefix

ONE = GroupPrefix(0, (b"a",), 4)
STATE = EngineState(0, 0.0, {("GPU", 0, b"a"): 0})
LATER = (10**6, 1e9)
"""Number and time of a batch that no engine makes."""
Act = Callable[[Any, str], object]


def _event(text: str, **members: Any) -> tuple[Any, ...]:
    return tuple(replace(each, **members) for each in events_of(text))


def _hear(events: Any) -> Act:
    return lambda index, engine: index.hear(engine, Batch(*LATER, events))


ILLEGAL: Sequence[tuple[str, str, Act]] = (
    ("hear", "number: -1", lambda i, e: i.hear(e, Batch(-1, 0.0, ()))),
    ("hear", "time_s: none", lambda i, e: i.hear(e, Batch(0, float("nan"), ()))),
    ("hear", "time_s: without end", lambda i, e: i.hear(e, Batch(0, float("inf"), ()))),
    ("hear", "group: -1", _hear(_event("+a/-1"))),
    ("restore", "number: -2", lambda i, e: i.restore(e, EngineState(-2, 0.0, {}))),
    ("restore", "keys: one without copies", lambda i, e: i.restore(e, STATE)),
    ("missing", "engine: unknown", lambda i, _: i.missing("unknown")),
    ("skip", "engine: unknown", lambda i, _: i.skip("unknown")),
    ("state", "engine: unknown", lambda i, _: i.state("unknown")),
    ("last", "engine: unknown", lambda i, _: i.last("unknown")),
    ("hits", "groups: none", lambda i, _: i.hits(())),
    ("hits", "groups: one twice", lambda i, _: i.hits((ONE, ONE))),
    ("hits", "block_size_tokens: 0", lambda i, _: i.hits((GroupPrefix(0, (), 0),))),
    ("hits", "num_last_blocks: -1", lambda i, _: i.hits((GroupPrefix(0, (), 4, -1),))),
    ("hits", "group: -1", lambda i, _: i.hits((GroupPrefix(-1, (), 4),))),
)
"""Each with the call's name, the member that is wrong, and the call, for an engine of this name."""

OF_TYPES: Sequence[tuple[str, str, Act]] = (
    ("hear", "batch: no Batch", lambda i, e: i.hear(e, (0, 0.0, ()))),
    ("hear", "events: None", _hear((None,))),
    ("hear", "events: a text as hash", _hear(_event("+a", block_hashes=("a",)))),
    ("hear", "medium: None", _hear(_event("+a", medium=None))),
    ("hear", "engine: 5", lambda i, _: i.hear(5, Batch(0, 0.0, ()))),
    ("restore", "state: a dict", lambda i, e: i.restore(e, {})),
    ("prefixes", "hashes: a text", lambda i, _: i.prefixes("abc")),
    ("prefixes", "hashes: None in them", lambda i, _: i.prefixes([None])),
    ("hits", "groups: None", lambda i, _: i.hits(None)),
    ("hits", "groups: 0 in them", lambda i, _: i.hits([0])),
    ("hits", "hashes: 7", lambda i, _: i.hits([GroupPrefix(0, 7, 4)])),  # type: ignore[arg-type]  # wrong on purpose
)
"""The same with values of wrong types, for which messages have no place."""
