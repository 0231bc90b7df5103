"""The progress of a run as JSON: what is done, and the graph of the current configuration.

States are not written: those of the last level are made again along their paths.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kvcheck.explore.graph import Graph
from kvcheck.explore.search import Counts
from kvcheck.explore.state import FINGERPRINT_BYTES
from kvspec._json import Where, anything, checked_members, count, list_of, object_of, text
from kvspec.errors import FormatError

FORMAT = "kvspec-explore-state"
VERSION = 2


@dataclass(frozen=True)
class Unfinished:
    """A configuration at the end of one of its levels; the last begins at state `first`."""

    name: str
    counts: Counts
    graph: Graph
    first: int
    seconds: float


@dataclass(frozen=True)
class Saved:
    """State from which a run can resume. `run`: what must be the same.

    `done`: the counts of each configuration that is done, and its seconds.
    """

    run: Mapping[str, Any]
    done: Mapping[str, tuple[Counts, float]] = field(default_factory=dict)
    unfinished: Unfinished | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        now = self.unfinished
        return {
            "format": FORMAT,
            "version": VERSION,
            "run": dict(self.run),
            "done": {
                name: {"counts": counts_json(counts), "seconds": seconds}
                for name, (counts, seconds) in self.done.items()
            },
            "unfinished": None if now is None else _encoded(now),
        }

    @classmethod
    def from_json(cls, value: object, where: Where) -> Saved:
        """Decode the content of a file. Raises FormatError."""
        found = checked_members(
            value,
            where,
            {
                "format": text,
                "version": count,
                "run": object_of(anything),
                "done": object_of(object_of(anything)),
                "unfinished": anything,
            },
            {},
        )
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise where.member("format").error(f"not a {FORMAT!r} of version {VERSION}")
        try:
            done = {
                name: (counts_of(entry["counts"]), float(entry["seconds"]))
                for name, entry in found["done"].items()
            }
            now = None if found["unfinished"] is None else _decoded(found["unfinished"], where)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise where.error(f"not as kvspec explore writes it: {error!r}") from None
        return cls(found["run"], done, now)


def counts_json(counts: Counts) -> dict[str, Any]:
    """Encode counts as JSON."""
    return {**asdict(counts), "by_move": dict(counts.by_move)}


def counts_of(value: Mapping[str, Any]) -> Counts:
    """Decode counts."""
    return Counts(**{**value, "by_move": tuple(sorted(value["by_move"].items()))})


def _encoded(now: Unfinished) -> dict[str, Any]:
    graph = now.graph
    return {
        "name": now.name,
        "counts": counts_json(now.counts),
        "seconds": now.seconds,
        "first": now.first,
        "moves": [list(move) for move in graph.table],
        "states": _text(b"".join(graph.numbers)),
        "parents": _text(_little_endian(graph.parents)),
        "made": _text(_little_endian(graph.made)),
    }


def _decoded(value: Mapping[str, Any], where: Where) -> Unfinished:
    names = base64.b64decode(value["states"], validate=True)
    size = FINGERPRINT_BYTES
    numbers = {names[at : at + size]: at // size for at in range(0, len(names), size)}
    moves = list_of(list_of(anything))(value["moves"], where.member("moves"))
    graph = Graph(
        numbers,
        _numbers(value["parents"]),
        _numbers(value["made"]),
        {tuple(map(_frozen, move)): number for number, move in enumerate(moves)},
    )
    fits = len(graph.parents) == len(graph.made) == len(numbers) > value["first"] >= 0
    is_tree = all(0 <= parent < number for number, parent in enumerate(graph.parents) if number)
    if not fits or not is_tree or not all(0 <= made < len(graph.table) for made in graph.made):
        raise where.member("unfinished").error("its states, parents and moves do not fit together")
    return Unfinished(
        value["name"], counts_of(value["counts"]), graph, value["first"], float(value["seconds"])
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _little_endian(numbers: array[int]) -> bytes:
    copy = array("q", numbers)
    if sys.byteorder == "big":
        copy.byteswap()
    return copy.tobytes()


def _numbers(encoded: str) -> array[int]:
    numbers = array("q")
    numbers.frombytes(base64.b64decode(encoded, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _frozen(value: Any) -> Any:
    """Convert lists to the tuples that moves have."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
