"""Nodes of a tree of prefixes: paths, splits, and who is evicted first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kvspec.tree import TreeConfig


@dataclass(eq=False)
class Node:
    """A run of whole pages behind the prefix of its parent; a root has no tokens.

    `created`, `last_used`: times of the tree's clock. `num_hits`: requests that were admitted with
    it. `priority`: the highest of the requests that stored it. `longest`: tokens of the longest
    prefix that was ever stored through it. `sessions`: open ones that stored it. `transfers`: that
    read or write its slots and are not done.
    """

    salt: str
    parent: Node | None = None
    key: tuple[int, ...] = ()
    slots: list[int] = field(default_factory=list)
    window_slots: list[int] | None = None
    state: int | None = None
    created: int = 0
    last_used: int = 0
    num_hits: int = 0
    priority: int = 0
    longest: int = 0
    sessions: set[str] = field(default_factory=set)
    host_slots: list[int] | None = None
    transfers: set[int] = field(default_factory=set)
    children: list[Node] = field(default_factory=list)

    def path(self) -> list[Node]:
        """Return the nodes from below the root to this one."""
        return [] if self.parent is None else [*self.parent.path(), self]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for node in self.path() for token in node.key)

    @property
    def end(self) -> int:
        return len(self.tokens)

    @property
    def start(self) -> int:
        return self.end - len(self.key)

    def below(self) -> list[Node]:
        """Return this node and all below it, each after those above it."""
        return [self, *(node for child in self.children for node in child.below())]

    def split(self, num_tokens: int) -> Node:
        """Put a new node with the first tokens above this one, which keeps its state (KV-TREE-3).

        Returns the new node.
        """
        upper = Node(self.salt, self.parent, self.key[:num_tokens], self.slots[:num_tokens])
        upper.created, upper.last_used = self.created, self.last_used
        upper.num_hits, upper.priority = self.num_hits, self.priority
        upper.longest, upper.sessions = self.longest, set(self.sessions)
        self.key, self.slots = self.key[num_tokens:], self.slots[num_tokens:]
        if self.host_slots is not None:
            upper.host_slots = self.host_slots[:num_tokens]
            self.host_slots = self.host_slots[num_tokens:]
        upper.transfers = set(self.transfers)
        if self.window_slots is not None:
            upper.window_slots = self.window_slots[:num_tokens]
            self.window_slots = self.window_slots[num_tokens:]
        if self.parent is not None:
            self.parent.children[self.parent.children.index(self)] = upper
        self.parent, upper.children = upper, [self]
        return upper


def walked(root: Node, tokens: Sequence[int], page_size: int) -> list[Node]:
    """Return the nodes whose pages `tokens` begins with; the last is split where they part."""
    path: list[Node] = []
    at, node = 0, root
    while True:
        rest = tuple(tokens[at:])
        same = {child: num_equal(child.key, rest, page_size) for child in node.children}
        node = next((child for child, number in same.items() if number), root)
        if node is root:
            return path
        if same[node] < len(node.key):
            node = node.split(same[node])
        path.append(node)
        at += len(node.key)


def num_equal(key: Sequence[int], tokens: Sequence[int], page_size: int) -> int:
    """Return how many tokens of their equal first pages there are (KV-TREE-1)."""
    number = 0
    while number + page_size <= min(len(key), len(tokens)):
        if tuple(key[number : number + page_size]) != tuple(tokens[number : number + page_size]):
            break
        number += page_size
    return number


MANY_HITS = 2
"""Hits by which a node leaves the first segment of order `slru`."""

EVICTED_FIRST: Mapping[str, Callable[[Node], Any]] = MappingProxyType(
    {
        "lru": lambda node: node.last_used,
        "lfu": lambda node: (node.num_hits, node.last_used),
        "fifo": lambda node: (node.created, node.end),
        "mru": lambda node: -node.last_used,
        "filo": lambda node: (-node.created, -node.end),
        "priority": lambda node: (node.priority, node.last_used),
        "slru": lambda node: (node.num_hits >= MANY_HITS, node.last_used),
        "tlru": lambda node: node.last_used,
    }
)
"""For each order, the key by which the least node is evicted first (KV-TREE-30).

Of order `tlru` nodes in a tail go before them.
"""


def is_whole(node: Node, config: TreeConfig) -> bool:
    """Check that the node has slots of every part."""
    has_window = not config.window_tokens or node.window_slots is not None
    return has_window and (not config.num_states or node.state is not None)
