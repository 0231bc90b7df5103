"""Who makes which mistake, for tests: `mistaken("GivesABlockTwice")`.

Read from where they are written, so that nothing has to be installed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from kvcheck.mistakes import Mistake, MistakeError, find, read
from kvspec.interface import Implementation

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
    """Those of the reference."""
    return tuple(read(files("kvref.mistakes"), "kvref"))


@cache
def of_kvfast() -> tuple[Mistake, ...]:
    """Those of kvfast, mostly at one of its sizes: most checks know only short lists and texts."""
    return tuple(read(files("kvfast.mistakes"), "kvfast"))


def mistaken(name: str, *, audits: bool = False) -> Any:
    """The implementation that makes this mistake; with `audits` it checks itself, as kvref does."""
    return find(name, mistakes()).make(**{"audits": True} if audits else {})


def __getattr__(name: str) -> Callable[[], Implementation]:
    """The factory of this name, for `find_implementation("tests.mistakes:…")`."""
    if name[:1].isupper():
        try:
            return find(name, mistakes()).make
        except MistakeError as error:
            raise AttributeError(str(error)) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
