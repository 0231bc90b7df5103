"""Searches of a few groups and lengths, each with every set of hits.

Blocks hold one token, so that every length is aligned, and a search is within NUM_TOKENS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from types import SimpleNamespace
from typing import cast

from kvfast._core.lookup import Lookup
from kvfast._core.request import FastRequest
from kvfast._core.shape import Shape

NUM_TOKENS = 3


@dataclass(frozen=True)
class Group:
    """A kind, and the lengths that are hits, or hits with a block behind."""

    hits: frozenset[int]
    behind: frozenset[int]
    is_full: bool = False
    is_eagle: bool = False
    is_mamba: bool = False

    def look_up(self, within: int, *, drop: bool) -> int:
        """Return the longest hit within this many tokens."""
        if drop:
            return max((n for n in self.behind if n + 1 <= within), default=0)
        return max(n for n in self.hits if n <= within)

    def is_good(self, n: int) -> bool:
        """Check that the group can return n tokens, and has the block behind if it drops."""
        dropped = n == 0 or (n in self.behind and n + 1 <= NUM_TOKENS)
        return n in self.hits and (dropped or self.is_mamba or not self.is_eagle)


def all_groups() -> Iterator[Group]:
    """Yield full attention, windows and states, eagle or not, with every set of hits."""
    for run in range(NUM_TOKENS + 2):
        hits = frozenset(range(min(run, NUM_TOKENS) + 1))
        for is_eagle in (False, True):
            yield Group(hits, frozenset(range(max(run, 1))), True, is_eagle)
    lengths = range(1, NUM_TOKENS + 1)
    for hits in map(frozenset, subsets(lengths)):
        yield Group(hits | {0}, frozenset())
        yield Group(hits | {0}, frozenset(), is_eagle=True, is_mamba=True)
        for behind in map(frozenset, subsets(sorted(hits))):
            yield Group(hits | {0}, behind | {0}, is_eagle=True)


def subsets(values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every subset, the smallest first."""
    for count in range(len(values) + 1):
        yield from combinations(values, count)


def all_worlds() -> Iterator[tuple[Group, ...]]:
    """Yield any two or three groups, full attention first (KV-COORD-4)."""
    groups = list(all_groups())
    for num_groups in (2, 3):
        for world in product(groups, repeat=num_groups):
            kinds = [group.is_full for group in world]
            if kinds == sorted(kinds, reverse=True):
                yield world


class SmallLookup(Lookup):
    """Look-ups among these groups: `agreed_hit` and `ask` are the code itself."""

    def __init__(self, world: tuple[Group, ...]) -> None:
        self.world = world
        num = len(world)
        self.shape = cast(
            Shape, SimpleNamespace(alignment=1, num_attention=num, looks_beyond=False)
        )
        self.is_verified = cast("memoryview[int]", [0] * num)
        self.found_blocks = cast("memoryview[int]", [-1] * num)
        self.longest_tokens = 0
        self.lists = [0] * num

    def clear(self) -> None:
        """Do nothing: groups outside prefix caching are left out."""

    def make_room(self, num_blocks: int) -> None:
        """Do nothing: blocks are not stored."""

    def block_size_of(self, a: int) -> int:
        return 1

    def is_full(self, a: int) -> bool:
        return self.world[a].is_full

    def drops(self, a: int) -> bool:
        return self.world[a].is_eagle

    def is_mamba(self, a: int) -> bool:
        return self.world[a].is_mamba

    def look_up(self, a: int, request: FastRequest, tokens: int, drop: bool, per: int) -> int:
        return self.world[a].look_up(tokens, drop=drop)

    def spread(self, a: int, num_blocks: int) -> None:
        self.lists[a] = num_blocks


def first_wrong() -> tuple[Group, ...] | None:
    """Return a world with one drop besides full attention in which the search is wrong, or None."""
    for world in all_worlds():
        one_drops = sum(group.is_eagle and not group.is_full for group in world) <= 1
        if one_drops and is_wrong(world):
            return world
    return None


def is_wrong(world: tuple[Group, ...]) -> bool:
    """Check whether the result is not the longest common hit."""
    found = SmallLookup(world)
    length = found.agreed_hit(cast(FastRequest, None), NUM_TOKENS)
    common = [n for n in range(NUM_TOKENS + 1) if all(group.is_good(n) for group in world)]
    return length != max(common) or set(found.lists) != {length} or found.longest_tokens < length
