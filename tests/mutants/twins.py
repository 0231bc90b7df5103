"""Broken parts that other tests have, as mutants; the rules of those that do not name them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from kvref.configuration import Parts
from kvref.hybrid import HybridCoordinator
from tests.fixed_point import masks, searches, states, windows
from tests.fixed_point.twin import Twin
from tests.invariants.broken_parts import BROKEN_PARTS, BrokenPart, RaisesWhenShort
from tests.machines.broken_pools import BROKEN_POOLS
from tests.mutants.make import HEAD, Mutant, Mutated, implementation_with
from tests.plans.broken import MISTAKES
from tests.section11 import twins as section11

RULES_OF_POOLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "LeaksUnhashedBlocks": ("KV-POOL-6", "KV-POOL-15"),
        "GivesABlockTwice": ("KV-POOL-3", "KV-POOL-15"),
        "TouchLeavesTheBlockFree": ("KV-POOL-5",),
        "KeepsKeysOfTakenBlocks": ("KV-POOL-4",),
        "TakesFromTheBack": ("KV-POOL-3",),
        "HashedBlocksToTheFront": ("KV-POOL-6",),
        "UnhashedRunReversed": ("KV-POOL-6",),
        "DuplicateReplacesTheFirst": ("KV-POOL-13", "KV-POOL-14"),
        "EvictingOneDuplicateForgetsAll": ("KV-POOL-14",),
        "NewestDuplicateFirst": ("KV-POOL-13",),
        "ResetsWhileInUse": ("KV-POOL-11",),
        "EvictionFreesTheBlock": ("KV-POOL-10",),
        "SilentEviction": ("KV-EVT-4",),
        "FreesWhatOthersStillHold": ("KV-POOL-6",),
    }
)

RULES_OF_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "NullIsMinusOne": ("KV-GRP-2",),
        "ReleasesTheNullBlock": ("KV-POOL-1",),
        "QueuesTwice": ("KV-POOL-15",),
        "LeaksTheWindow": ("KV-GRP-2", "KV-POOL-15"),
        "KeepsTheReferences": ("KV-GRP-2", "KV-POOL-16"),
        "LooksUpLostKeys": ("KV-PART-5",),
        "PartialKeysTwice": ("KV-PART-1",),
        "KeysBehindTheLastGroup": ("KV-HASH-6",),
        "KeysOfTheFirstGroup": ("KV-HASH-6", "KV-POOL-17"),
        "MovesAndKeeps": ("KV-MAMBA-9", "KV-POOL-17"),
        "CountsSkippedHitsTwice": ("KV-GRP-5",),
        "NeedsOneLess": ("KV-GRP-3", "KV-GRP-4"),
        "LookUpEndsTheStep": ("KV-MGR-2", "KV-MAMBA-2"),
        "RefusalKeepsHits": ("KV-MGR-6",),
        "CopiesBeforeWriting": ("KV-GRP-1",),
        "KeepsTheFirstBlock": ("KV-GRP-2",),
        "MovesTheRunningState": ("KV-MAMBA-9", "KV-POOL-17"),
        "PartialEntriesCoverNothing": ("KV-PART-3",),
        "ListsTheSinks": ("KV-FULL-8",),
        "EvictsOneTooMany": ("KV-POOL-4", "KV-GRP-2"),
        "ReleasedCopiesGoLast": ("KV-POOL-13",),
    }
)

RULES_OF_MISTAKES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "forgets the null block": ("KV-PLAN-9", "KV-PLAN-20", "KV-LIVE-3"),
        "forgets the blocks set aside for sinks": ("KV-PLAN-9", "KV-FULL-8"),
        "forgets that a window may start inside a block": ("KV-PLAN-8",),
        "counts one block for every running state": ("KV-PLAN-9",),
        "leaves every worker its own number of blocks": ("KV-PLAN-15",),
        "leaves tensors as they were when blocks are cut": ("KV-PLAN-15",),
        "merges a larger latent into a smaller one": ("KV-PLAN-2",),
        "lets layers of one group share a tensor": ("KV-PLAN-13",),
        "loses a layer when groups are dealt": ("KV-PLAN-6", "KV-PLAN-13"),
        "promises one token too many": ("KV-PLAN-10",),
        "promises one token too few": ("KV-PLAN-10",),
        "rounds the number of blocks up": ("KV-PLAN-12",),
        "ignores the number of blocks asked for": ("KV-PLAN-12",),
        "lets packed pages overlap": ("KV-PLAN-14",),
        "answers differently the second time": ("KV-PLAN-19",),
    }
)

SECTION_11: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (section11.CutsTheFirst, ("KV-COORD-11",)),
    (section11.ForgetsExternal, ("KV-MAMBA-8",)),
    (section11.LastItemOnly, ("KV-HASH-8",)),
    (section11.SkipsAtTheEnd, ("KV-MGR-6", "KV-SW-1")),
    (section11.CountsDrafts, ("KV-REQ-3",)),
    (section11.KeepsThePrefix, ("KV-MGR-2", "KV-COORD-12")),
    (section11.AcceptsAnyChunk, ("KV-CHUNK-3", "KV-POL-6")),
    (section11.AllocatesLessThanNothing, ("KV-GRP-6", "KV-GRP-9")),
    (section11.TrustsTheCaller, ("KV-POOL-9", "KV-ERR-3")),
    (section11.Asserts, ("KV-ERR-2",)),
)
"""Without the two that are the same as twins of the fixed point."""


def first_line(thing: Any) -> str:
    """What its docstring says, without the rule."""
    text = " ".join((thing.__doc__ or "").split())
    found = HEAD.match(text)
    return text[found.end() :] if found else text


def _of_pools() -> tuple[Mutant, ...]:
    return tuple(
        Mutant(
            pool.__name__,
            RULES_OF_POOLS[pool.__name__],
            first_line(pool),
            partial(implementation_with, pool),
            (pool,),
        )
        for pool in BROKEN_POOLS
    )


def _of_part(part: BrokenPart) -> Mutant:
    broken: type[Any] = part.group[1] if part.group else part.pool
    if part.hybrid is not HybridCoordinator:
        broken = part.hybrid
    return Mutant(
        broken.__name__,
        RULES_OF_PARTS[broken.__name__],
        first_line(broken),
        partial(Mutated, Parts(part.pool, (part.group,) if part.group else (), part.hybrid)),
        (broken, RaisesWhenShort) if part.pool is RaisesWhenShort else (broken,),
    )


def _of_twin(twin: Twin) -> Mutant:
    return Mutant(
        twin.broken.__name__,
        (twin.rule,),
        first_line(twin.broken),
        partial(implementation_with, twin.broken),
        (twin.broken,),
    )


def _of_mistake(name: str) -> Mutant:
    mistake = MISTAKES[name]

    def make() -> Mutated:
        return Mutated(planner_patches=mistake.patches)

    joined = "".join(word.capitalize() for word in name.split())
    return Mutant(
        joined,
        RULES_OF_MISTAKES[name],
        f"{name.capitalize()}.",
        make,
        tuple(replacement for _, _, replacement in mistake.patches),
    )


MUTANTS = (
    *_of_pools(),
    *(_of_twin(twin) for twin in searches.TWINS),
    *(_of_twin(twin) for twin in windows.TWINS),
    *(_of_twin(twin) for twin in states.TWINS),
    *(_of_twin(twin) for twin in masks.TWINS),
    *(_of_part(part) for part in BROKEN_PARTS),
    *(
        Mutant(
            broken.__name__,
            rules,
            first_line(broken),
            partial(implementation_with, broken),
            (broken,),
        )
        for broken, rules in SECTION_11
    ),
    *map(_of_mistake, MISTAKES),
)
