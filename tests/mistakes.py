"""Implementations with a mistake, for tests: `mistaken("GivesABlockTwice")`.

Read from where they are written, so that nothing has to be installed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Any

from kvcheck.mistakes import Mistake, MistakeError, find, read
from kvcheck.mistakes.text import Entry, entries
from kvcheck.mistakes.twin import twin
from kvspec.interface import Implementation
from tests.source import ROOT

IN_BOTH = ROOT / "tests" / "kills" / "in_both.diff"
POOLS = (
    "LeaksUnhashedBlocks",
    "GivesABlockTwice",
    "TouchLeavesTheBlockFree",
    "KeepsKeysOfTakenBlocks",
    "TakesFromTheBack",
    "HashedBlocksToTheFront",
    "UnhashedRunReversed",
    "DuplicateReplacesTheFirst",
    "EvictingOneDuplicateForgetsAll",
    "NewestDuplicateFirst",
    "ResetsWhileInUse",
    "EvictionFreesTheBlock",
    "SilentEviction",
    "FreesWhatOthersStillHold",
)
"""A few mistakes of pools, neighbours of bugs that engines had; every tool is shown them."""


@cache
def mistakes() -> tuple[Mistake, ...]:
    return tuple(read(files("kvref.mistakes"), "kvref"))


def of_random_steps() -> list[str]:
    """Return those that random steps show; these neither follow requests nor walk the queue."""
    others = {"KV-BATCH-14", "KV-BATCH-15"}
    return [
        each.id for each in mistakes() if each.kind == "steps" and not others.issuperset(each.rules)
    ]


@cache
def of_kvfast() -> tuple[Mistake, ...]:
    """Return kvfast's own, mostly at one of its sizes: most checks use short lists and texts."""
    return tuple(read(files("kvfast.mistakes"), "kvfast"))


@cache
def in_both() -> tuple[tuple[Mistake, Mistake], ...]:
    """Return pairs of mistakes that kvref and kvfast make at once, in this order.

    Comparing the two shows none of them. Each is named as that of kvref, with InBoth appended.
    """
    return tuple(map(_in_both, entries(IN_BOTH.read_text(encoding="utf-8"))))


def _in_both(entry: Entry) -> tuple[Mistake, Mistake]:
    parts = {
        origin: [each for each in entry.changes if each.module.startswith(f"{origin}.")]
        for origin in ("kvref", "kvfast")
    }
    if not parts["kvref"]:
        parts["kvref"] = find(entry.id, mistakes()).make.args[1]  # type: ignore[attr-defined]  # a partial of `twin`
    name = f"{entry.id}InBoth"
    made = [
        Mistake(name, entry.rules, entry.about, origin, "both", partial(twin, origin, changes))
        for origin, changes in parts.items()
    ]
    return made[0], made[1]


def mistaken(name: str, *, audits: bool = False) -> Any:
    """Make the implementation with this mistake; with `audits` it checks itself, as kvref does."""
    return find(name, mistakes()).make(**{"audits": True} if audits else {})


def __getattr__(name: str) -> Callable[[], Implementation]:
    """Return the factory of this name, for `find_implementation("tests.mistakes:…")`."""
    if name[:1].isupper():
        try:
            return find(name, mistakes()).make
        except MistakeError as error:
            raise AttributeError(str(error)) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
