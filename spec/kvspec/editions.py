"""Editions of the contract: the rules that each added.

An implementation names the edition that it was written for (`Capabilities.edition`). Later rules,
options and calls, and later changes of rules, do not apply to it: so it still conforms wherever it
conformed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from kvspec.files.objects import Where
from kvspec.files.toml import parse_toml

EDITIONS: tuple[str, ...] = ("0.1", "0.2", "0.3")
"""Oldest first. The default is the first, which is older than editions."""

FIRST, NEWEST = EDITIONS[0], EDITIONS[-1]


@cache  # the file is part of the package
def edition_of_rules() -> Mapping[str, str]:
    """Return the edition that added each rule: id -> edition (`spec/kvspec/data/editions.toml`)."""
    path = files("kvspec").joinpath("data", "editions.toml")
    document = parse_toml(path.read_bytes(), Where("editions.toml"))
    return MappingProxyType(
        {rule: edition for edition, rules in document.items() for rule in rules}
    )


def has_come(since: str, edition: str) -> bool:
    """Return whether `since` is included in `edition`; an unknown one is newer than all."""
    order = {name: place for place, name in enumerate(EDITIONS)}
    return order[since] <= order.get(edition, len(order))
