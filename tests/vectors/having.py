"""What the tests share: sets by name, and walks as they are shipped."""

from __future__ import annotations

from functools import cache

from kvcheck.explore.vectors.sets import SETS, VectorSet
from kvcheck.judge.static import Parting, Recorded, parting_from, read_walk
from kvcheck.play.verdicts import Level
from kvcheck.records.manifest import shipped_sets
from kvspec.interface import Implementation

NAMES = tuple(each.configuration.name for each in SETS)


def vector_set(name: str) -> VectorSet:
    """The set of that name."""
    return next(each for each in SETS if each.configuration.name == name)


@cache
def walks(name: str) -> tuple[Recorded, ...]:
    """Its walks, read once in a process."""
    folder, manifest = next(pair for pair in shipped_sets() if pair[1].name == name)
    numbers = range(1, len(manifest.walks) + 1)
    return tuple(read_walk(folder, manifest, number) for number in numbers)


def first_parting(name: str, subject: Implementation, level: Level) -> Parting | None:
    """Where the subject parts first from one of the set's walks."""
    found = (parting_from(walk, subject, level) for walk in walks(name))
    return next((parting for parting in found if parting is not None), None)
