"""Ages of the prefixes in a tree, and the leaves that an order of eviction leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kvcheck.tree.structure import Prefix, Stored
from kvspec.tree import TreeConfig, TreeNode


@dataclass
class Age:
    """Of a prefix that is stored: when it was made and last used, and how often it was hit.

    `longest`: tokens of the longest prefix ever stored beyond it. `sessions`: open ones that have
    stored it.
    """

    made: int
    used: int
    num_hits: int = 0
    longest: int = 0
    sessions: set[str] = field(default_factory=set)


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
        "tlru": lambda age, _: age.used,  # behind those in a tail
    }
)
"""For each order the key by which the least leaf gives way, from its age and length."""


class Ages:
    """`of`: the age of each stored prefix of whole pages. `has_sessions`: whether some had one."""

    def __init__(self, config: TreeConfig) -> None:
        self.config = config
        self.of: dict[Prefix, Age] = {}
        self.clock = 0
        self.has_sessions = False

    def see(self, stored: Stored) -> None:
        """Begin the ages of new prefixes, and forget those that are gone."""
        self.clock += 1
        for prefix in sorted(stored.slots.keys() - self.of.keys(), key=lambda each: len(each[1])):
            self.of[prefix] = Age(self.clock, self.clock)
            salt, tokens = prefix
            for each, age in self.of.items():
                if each[0] == salt and tokens[: len(each[1])] == each[1]:
                    age.longest = max(age.longest, len(tokens))
        for prefix in self.of.keys() - stored.slots.keys():
            del self.of[prefix]

    def use(self, salt: str, tokens: Sequence[int], *, is_hit: bool = False) -> None:
        self.clock += 1
        for end in range(1, len(tokens) + 1):
            age = self.of.get((salt, tuple(tokens[:end])))
            if age is not None:
                age.used = self.clock
                age.num_hits += is_hit

    def keep(self, salt: str, tokens: Sequence[int], session: str) -> None:
        """Let a session have stored these tokens."""
        self.has_sessions |= bool(session)
        for end in range(1, len(tokens) + 1):
            if session and (salt, tuple(tokens[:end])) in self.of:
                self.of[salt, tuple(tokens[:end])].sessions.add(session)

    def close(self, session: str) -> None:
        for age in self.of.values():
            age.sessions.discard(session)

    def left(self, nodes: Sequence[TreeNode], number: int, locked: Sequence[Prefix]) -> set[Prefix]:
        """Return the nodes that are left when leaves give way for so many slots."""
        there = {(node.salt, node.tokens): len(node.slots) for node in nodes}
        freed = 0
        while freed < number:
            inner = {(salt, tokens[: len(tokens) - there[salt, tokens]]) for salt, tokens in there}
            leaves = [leaf for leaf in there if leaf not in inner and not _covers(locked, leaf)]
            if not leaves:
                break
            first = min(leaves, key=lambda leaf: self._key(leaf, there[leaf]))
            freed += there.pop(first)
        return set(there)

    def _key(self, leaf: Prefix, num_tokens: int) -> Any:
        age, length = self.of[leaf], len(leaf[1])
        is_tail = length - num_tokens >= age.longest - self.config.tail_tokens
        is_first = is_tail and self.config.order == "tlru"
        return len(age.sessions), not is_first, FIRST[self.config.order](age, length)


def _covers(locked: Sequence[Prefix], leaf: Prefix) -> bool:
    return any(salt == leaf[0] and tokens[: len(leaf[1])] == leaf[1] for salt, tokens in locked)
