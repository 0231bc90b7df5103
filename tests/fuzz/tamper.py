"""Snapshots with something changed in them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from kvspec.snapshot import Snapshot
from tests.contract.hostile import Liar

ODD: tuple[Any, ...] = (-1, 0, 1, 2, 7, 2**31, 2**40, 2**70, None, True, "x", b"x", Liar(1))


def tamper(snapshot: Snapshot, member: str, seed: int) -> Snapshot:
    return replace(snapshot, **{member: _changed(getattr(snapshot, member), Random(seed))})


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, dict) or hasattr(value, "items"):
        items = list(value.items())
        if not items or random.random() < 0.3:
            return {**dict(items), random.choice(("r", b"k" * 36, b"", 3)): random.choice(ODD)}
        at = random.randrange(len(items))
        if random.random() < 0.3:
            return dict(items[:at] + items[at + 1 :])
        items[at] = (items[at][0], _changed(items[at][1], random))
        return dict(items)
    if isinstance(value, tuple | frozenset):
        listed = sorted(value) if isinstance(value, frozenset) else list(value)
        way = random.randrange(5)
        if way == 0 or not listed:
            listed.insert(random.randint(0, len(listed)), random.choice(ODD))
        elif way == 1:
            del listed[random.randrange(len(listed))]
        elif way == 2:
            listed.append(random.choice(listed))
        else:
            at = random.randrange(len(listed))
            listed[at] = _changed(listed[at], random)
        return type(value)(listed)
    if isinstance(value, bytes):
        return random.choice((value[:-1], value + b"x", b"", bytes(len(value)), value[::-1]))
    if hasattr(value, "__dataclass_fields__"):
        member = random.choice(sorted(value.__dataclass_fields__))
        return replace(value, **{member: _changed(getattr(value, member), random)})
    return random.choice(ODD)
