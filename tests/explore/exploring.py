"""Shared by the tests: configurations by name, and explorations in this process."""

from __future__ import annotations

import kvref
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.configurations import configurations
from kvcheck.explore.search import Exploration, Pair, explore
from kvspec.interface import Implementation


def configuration(name: str) -> Configuration:
    return next(each for each in configurations() if each.name == name)


def explored(
    what: Configuration,
    subject: Implementation | None = None,
    *,
    oracle: Implementation | None = None,
    max_edges: int | None = None,
) -> Exploration:
    name = None if subject is None else "subject"
    pair = Pair(oracle or kvref.implementation(), subject, "kvref", name)
    return explore(Exploration(what), pair, max_edges=max_edges)
