"""Lines of a record of copies: a JSON object each, in the order in which the host issued them.

docs/hazards.md describes the form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.errors import KVSpecError

_PLACE = re.compile(r"([A-Za-z]\w*)/(\d+)(?::(\d+)(?:-(\d+))?)?")


class HazardRecordError(KVSpecError):
    """A line that is no line of such a record. `number` counts from 1."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number, self.reason = number, reason


@dataclass(frozen=True)
class Place:
    """Slots `begin` … `end` - 1 of a block of a pool."""

    pool: str
    block: int
    begin: int
    end: int

    @property
    def of_block(self) -> tuple[str, int]:
        return self.pool, self.block

    def __str__(self) -> str:
        return f"{self.pool}/{self.block}"


@dataclass(frozen=True)
class Pools:
    sizes_tokens: Mapping[str, int]


@dataclass(frozen=True)
class Given:
    """Blocks that a request takes, as new ones or (`is_hit`) with their content, or gives back."""

    request: str
    places: tuple[Place, ...]
    is_hit: bool = False
    is_back: bool = False


@dataclass(frozen=True)
class Run:
    """Work on a stream: a step, a copy, or zeroing.

    `request`: for whom, if it is for one alone. `after`: work on other streams that it waits for.
    """

    id: str
    stream: str
    reads: tuple[Place, ...] = ()
    writes: tuple[Place, ...] = ()
    request: str | None = None
    after: tuple[str, ...] = ()
    is_zeroing: bool = False


@dataclass(frozen=True)
class Ended:
    """The host knows from now on that this work has ended, and whether it did what it should."""

    id: str
    ok: bool = True


Line = Pools | Given | Run | Ended


def places_of(text: str, sizes_tokens: Mapping[str, int]) -> tuple[Place, ...]:
    """Return the places that a text names: `gpu/3` whole, `gpu/3:4` one slot, `gpu/3:0-7` eight."""
    found = []
    for word in text.split():
        match = _PLACE.fullmatch(word)
        if match is None or match[1] not in sizes_tokens:
            raise ValueError(f"{word!r} is no place of {', '.join(sizes_tokens) or 'a pool'}")
        size = sizes_tokens[match[1]]
        begin = int(match[3] or 0)
        end = size if match[3] is None else int(match[4] or begin) + 1
        if not begin < end <= size:
            raise ValueError(f"{word!r} is not inside a block of {size} tokens")
        found.append(Place(match[1], int(match[2]), begin, end))
    return tuple(found)


def line_of(values: Mapping[str, Any], sizes_tokens: Mapping[str, int]) -> Line:
    """Return a line from the members of its JSON object. Raises KeyError, TypeError, ValueError."""
    given = dict(values)
    op = given.pop("op")
    for name in ("places", "reads", "writes"):
        if name in given:
            given[name] = places_of(given[name], sizes_tokens)
    if op == "pools":
        return Pools({name: int(size) for name, size in given.items()})
    if op in ("give", "hit", "back"):
        return Given(**given, is_hit=op == "hit", is_back=op == "back")
    if op in ("run", "zero"):
        given["after"] = tuple(given.get("after", ()))
        return Run(**given, is_zeroing=op == "zero")
    if op == "ended":
        return Ended(**given)
    raise ValueError(f"op {op!r} is none of pools, give, hit, back, run, zero, ended")


def lines_of(texts: Iterable[str]) -> Iterator[tuple[int, Line]]:
    """Yield the numbered lines of a record. Raises HazardRecordError."""
    sizes_tokens: Mapping[str, int] = {}
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = line_of(json.loads(text), sizes_tokens)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HazardRecordError(number, str(error)) from error
        if isinstance(line, Pools):
            sizes_tokens = line.sizes_tokens
        yield number, line


def object_of(line: Line) -> dict[str, Any]:
    """Return the JSON object of a line, which `line_of` reads."""
    if isinstance(line, Pools):
        return {"op": "pools", **line.sizes_tokens}
    found = {name: value for name, value in vars(line).items() if value or name == "ok"}
    flags = {"is_hit": "hit", "is_back": "back", "is_zeroing": "zero"}
    op = {Given: "give", Run: "run", Ended: "ended"}[type(line)]
    for flag, name in flags.items():
        op = name if found.pop(flag, False) else op
    for name in {"places", "reads", "writes"} & found.keys():
        texts = (f"{each}:{each.begin}-{each.end - 1}" for each in found[name])
        found[name] = " ".join(texts)
    return {"op": op, **found}
