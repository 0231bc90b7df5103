"""Mistakes registered by installed packages, and those of any other folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

from kvcheck.mistakes.text import Entry, Mistake, MistakeError, entries
from kvcheck.mistakes.twin import twin

GROUP = "kvspec.mistakes"
SUFFIX = ".diff"  # editors colour it


@cache
def installed() -> tuple[Mistake, ...]:
    """Return the mistakes of all entry points of the group, in the order of their files."""
    found = {entry.value: entry for entry in entry_points(group=GROUP)}
    return tuple(each for name in sorted(found) for each in read(files(name), found[name].name))


def read(folder: Traversable, origin: str) -> Iterator[Mistake]:
    """Yield the mistakes in the files of a folder, made from the package `origin`."""
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(SUFFIX):
            for entry in entries(file.read_text(encoding="utf-8")):
                yield _mistake(entry, origin)


def _mistake(entry: Entry, origin: str) -> Mistake:
    if not entry.changes:
        raise MistakeError(f"{entry.id} changes nothing")
    return Mistake(
        entry.id,
        entry.rules,
        entry.about,
        origin,
        kind_of(change.module for change in entry.changes),
        partial(twin, origin, tuple(entry.changes)),
        entry.equivalent,
    )


KINDS = MappingProxyType(
    {
        "planning": "planner",
        "sequential": "steps",
        "tier": "tier",
        "offload": "tier",
        "eviction": "tier",
        "tree": "tree",
    }
)
"""The kind of a mistake by a part of its module's name; others are of the manager."""


def kind_of(modules: Iterable[str]) -> str:
    parts = {part for module in modules for part in module.split(".")}
    return next((kind for part, kind in KINDS.items() if part in parts), "manager")


def find(name: str, among: Iterable[Mistake] | None = None) -> Mistake:
    """Return the mistake of this id; raises MistakeError if there is none."""
    for mistake in installed() if among is None else among:
        if mistake.id == name:
            return mistake
    raise MistakeError(f"no mistake is called {name}")


def about_rule(rule: str, among: Iterable[Mistake] | None = None) -> tuple[Mistake, ...]:
    """Return the mistakes that break this rule, first those that name it first."""
    breaking = [m for m in (installed() if among is None else among) if rule in m.rules]
    return tuple(sorted(breaking, key=lambda mistake: mistake.rules[0] != rule))
