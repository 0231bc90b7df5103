"""Illegal calls of an index, none of which may change anything (KV-FLEET-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvcheck.fleet.engine import events_of
from kvspec.fleet import Batch, EngineState, GroupPrefix

ONE = GroupPrefix(0, (b"a",), 4)
STATE = EngineState(0, 0.0, {("GPU", 0, b"a"): 0})
Act = Callable[[Any, str], object]
_events: Any = lambda text: tuple(events_of(text))  # noqa: E731 (of what is none, too)

ILLEGAL: Sequence[tuple[str, str, Act]] = (
    ("hear", "a number of -1", lambda i, e: i.hear(e, Batch(-1, 0.0, ()))),
    ("hear", "a time that is none", lambda i, e: i.hear(e, Batch(0, float("nan"), ()))),
    ("hear", "an endless time", lambda i, e: i.hear(e, Batch(0, float("inf"), ()))),
    ("hear", "a group of -1", lambda i, e: i.hear(e, Batch(10**6, 1e9, _events("+a/-1")))),
    ("restore", "a number of -2", lambda i, e: i.restore(e, EngineState(-2, 0.0, {}))),
    ("restore", "no copy of a key", lambda i, e: i.restore(e, STATE)),
    ("missing", "an unknown engine", lambda i, _: i.missing("unknown")),
    ("skip", "an unknown engine", lambda i, _: i.skip("unknown")),
    ("state", "an unknown engine", lambda i, _: i.state("unknown")),
    ("last", "an unknown engine", lambda i, _: i.last("unknown")),
    ("hits", "no group", lambda i, _: i.hits(())),
    ("hits", "a group twice", lambda i, _: i.hits((ONE, ONE))),
    ("hits", "blocks of 0 tokens", lambda i, _: i.hits((GroupPrefix(0, (), 0),))),
    ("hits", "-1 last blocks", lambda i, _: i.hits((GroupPrefix(0, (), 4, -1),))),
)
"""Each with the call's name, what is wrong, and the call of an index, for an engine of this name.

Values of wrong types are not among them: a message that carries calls may have no place for them.
"""
