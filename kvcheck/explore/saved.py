"""The progress of a run as JSON: what is done, and the graph of the current configuration.

States are not written: those of the last level are made again along their paths.
"""

from __future__ import annotations

import base64
from array import array
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kvcheck.explore.graph import Graph
from kvcheck.explore.search import Counts
from kvcheck.explore.state import FINGERPRINT_BYTES
from kvspec._json import Where, anything, count, list_of, object_of, optional, real, structure, text

FORMAT = "kvspec-explore-state"
VERSION = 3

_COUNTS = structure(
    {
        **dict.fromkeys(("states", "edges", "refused", "errors", "depth"), count),
        "by_move": object_of(count),
    }
)
_UNFINISHED = structure(
    {
        "name": text,
        "counts": _COUNTS,
        "seconds": real,
        "first": count,
        "moves": list_of(list_of(anything)),
        "states": text,
        "parents": list_of(count),
        "made": list_of(count),
    }
)
_FILE = structure(
    {
        "format": text,
        "version": count,
        "run": object_of(anything),
        "done": object_of(structure({"counts": _COUNTS, "seconds": real})),
        "unfinished": optional(_UNFINISHED),
    }
)


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
        found = _FILE(value, where)
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise where.member("format").error(f"not a {FORMAT!r} of version {VERSION}")
        done = {
            name: (counts_of(entry["counts"]), entry["seconds"])
            for name, entry in found["done"].items()
        }
        now = found["unfinished"]
        return cls(found["run"], done, None if now is None else _decoded(now, where))


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
        "states": base64.b64encode(b"".join(graph.numbers)).decode("ascii"),
        "parents": graph.parents.tolist(),
        "made": graph.made.tolist(),
    }


def _decoded(value: Mapping[str, Any], where: Where) -> Unfinished:
    here = where.member("unfinished")
    try:
        names = base64.b64decode(value["states"], validate=True)
    except Base64Error as error:
        raise here.member("states").error(str(error)) from None
    size = FINGERPRINT_BYTES
    numbers = {names[at : at + size]: at // size for at in range(0, len(names), size)}
    try:
        table = {tuple(map(_frozen, move)): number for number, move in enumerate(value["moves"])}
    except TypeError:
        raise here.member("moves").error("moves are lists of words, numbers and lists") from None
    graph = Graph(numbers, array("q", value["parents"]), array("q", value["made"]), table)
    fits = len(graph.parents) == len(graph.made) == len(numbers) > value["first"]
    is_tree = all(parent < number for number, parent in enumerate(graph.parents) if number)
    if not fits or not is_tree or not all(made < len(table) for made in graph.made):
        raise here.error("its states, parents and moves do not fit together")
    return Unfinished(
        value["name"], counts_of(value["counts"]), graph, value["first"], value["seconds"]
    )


def _frozen(value: Any) -> Any:
    """Convert lists to the tuples that moves have."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
