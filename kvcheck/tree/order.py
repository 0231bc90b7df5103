"""Ages of the prefixes in a tree, and the leaves that an order of eviction leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvcheck.tree.structure import Prefix, Stored
from kvspec.tree import TreeConfig, TreeNode


@dataclass
class Age:
    """Of a prefix that is stored: when it was made and last used, and how often it was hit."""

    made: int
    used: int
    num_hits: int = 0


MANY_HITS = 2

FIRST: Mapping[str, Callable[[Age, int], Any]] = MappingProxyType(
    {
        "lru": lambda age, _: age.used,
        "lfu": lambda age, _: (age.num_hits, age.used),
        "fifo": lambda age, length: (age.made, length),
        "mru": lambda age, _: -age.used,
        "filo": lambda age, length: (-age.made, -length),
        "priority": lambda age, _: age.used,  # lives have requests of one priority
        "slru": lambda age, _: (age.num_hits >= MANY_HITS, age.used),
    }
)
"""For each order the key by which the least leaf gives way, from its age and length."""


class Ages:
    """`of`: the age of each stored prefix of whole pages."""

    def __init__(self, config: TreeConfig) -> None:
        self.config = config
        self.of: dict[Prefix, Age] = {}
        self.clock = 0

    def see(self, stored: Stored) -> None:
        """Begin the ages of new prefixes, and forget those that are gone."""
        self.clock += 1
        for prefix in stored.slots.keys() - self.of.keys():
            self.of[prefix] = Age(self.clock, self.clock)
        for prefix in self.of.keys() - stored.slots.keys():
            del self.of[prefix]

    def use(self, salt: str, tokens: Sequence[int], *, is_hit: bool = False) -> None:
        self.clock += 1
        for end in range(1, len(tokens) + 1):
            age = self.of.get((salt, tuple(tokens[:end])))
            if age is not None:
                age.used = self.clock
                age.num_hits += is_hit

    def left(self, nodes: Sequence[TreeNode], number: int, locked: Sequence[Prefix]) -> set[Prefix]:
        """Return the nodes that are left when leaves give way for so many slots."""
        there = {(node.salt, node.tokens): len(node.slots) for node in nodes}
        freed = 0
        while freed < number:
            inner = {(salt, tokens[: len(tokens) - there[salt, tokens]]) for salt, tokens in there}
            leaves = [leaf for leaf in there if leaf not in inner and not _covers(locked, leaf)]
            if not leaves:
                break
            first = min(
                leaves, key=lambda leaf: FIRST[self.config.order](self.of[leaf], len(leaf[1]))
            )
            freed += there.pop(first)
        return set(there)


def _covers(locked: Sequence[Prefix], leaf: Prefix) -> bool:
    return any(salt == leaf[0] and tokens[: len(leaf[1])] == leaf[1] for salt, tokens in locked)
