"""The nodes of a tree as they are listed: shape, slots by prefix, and the longest match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvspec.tree import Part, TreeConfig, TreeNode

Prefix = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Longest:
    """What a match may be: `full` tokens have full slots, and matches end at `live` and `states`.

    `least`: at least that many tokens, with W live ones before the end. `live`: ends with W - 1, of
    which a subject may accept any (KV-TREE-17). `why`: the rules that make a match shorter.
    """

    full: int
    least: int
    live: frozenset[int]
    states: frozenset[int]
    why: tuple[str, ...]

    @property
    def most(self) -> int:
        return max(self.live & self.states, default=0)

    def rule_broken_by(self, num_tokens: int) -> str:
        """Return the rule that a match of so many tokens breaks; "" if none."""
        if num_tokens > self.full or num_tokens < self.least:
            return "KV-TREE-16"
        if num_tokens and num_tokens not in self.live:
            return "KV-TREE-17"
        return "KV-TREE-18" if num_tokens and num_tokens not in self.states else ""


class Stored:
    """By prefixes of whole pages: the last one's slots, which are live, which have a state."""

    def __init__(self, config: TreeConfig, nodes: Sequence[TreeNode]) -> None:
        self.config, self.nodes = config, nodes
        self.page = config.page_size_tokens
        self.slots: dict[Prefix, tuple[int, ...]] = {}
        self.live: set[Prefix] = set()
        self.states: set[Prefix] = set()
        for node in nodes:
            start = len(node.tokens) - len(node.slots)
            for at in range(0, len(node.slots), self.page):
                prefix = node.salt, node.tokens[: start + at + self.page]
                self.slots[prefix] = node.slots[at : at + self.page]
                if node.window_slots is not None:
                    self.live.add(prefix)
            if node.state is not None:
                self.states.add((node.salt, node.tokens))

    def slots_of(self, salt: str, tokens: Sequence[int]) -> list[int]:
        """Return the slots of the longest prefix that is stored."""
        found: list[int] = []
        for end in range(self.page, len(tokens) + 1, self.page):
            slots = self.slots.get((salt, tuple(tokens[:end])))
            if slots is None:
                break
            found += slots
        return found

    def pages(self, part: Part) -> set[int]:
        """Return the pages that nodes have; the slots, of states."""
        if part == Part.STATE:
            return {node.state for node in self.nodes if node.state is not None}
        lists = [node.slots if part == Part.FULL else node.window_slots for node in self.nodes]
        return {slot // self.page for slots in lists for slot in slots or ()}

    def longest(self, salt: str, tokens: Sequence[int]) -> Longest:
        """Return what a match of these tokens may be."""
        page, window = self.page, self.config.window_tokens
        full = len(self.slots_of(salt, tokens))
        ends = range(page, full + 1, page)
        live = frozenset(end for end in ends if self._is_live(salt, tokens, end, window - 1))
        all_live = {end for end in live if self._is_live(salt, tokens, end, window)}
        states = frozenset(
            end
            for end in ends
            if not self.config.num_states or (salt, tuple(tokens[:end])) in self.states
        )
        is_short = {"KV-TREE-17": full not in all_live, "KV-TREE-18": full not in states}
        why = tuple(rule for rule, is_so in is_short.items() if full and is_so)
        return Longest(full, max(all_live & states, default=0), live, states, why)

    def _is_live(self, salt: str, tokens: Sequence[int], end: int, number: int) -> bool:
        pages = {at // self.page for at in range(max(0, end - number), end)}
        prefixes = [(salt, tuple(tokens[: (page + 1) * self.page])) for page in pages]
        return not self.config.window_tokens or all(each in self.live for each in prefixes)

    def shape(self) -> tuple[str, str] | None:
        """Return the first rule that the shape of the tree breaks, and how; None if none."""
        page = self.page
        ends = {(node.salt, node.tokens) for node in self.nodes}
        parents = {
            (node.salt, node.tokens[: len(node.tokens) - len(node.slots)]) for node in self.nodes
        }
        begun: Counter[Prefix] = Counter()
        for node in self.nodes:
            start = len(node.tokens) - len(node.slots)
            if not node.slots or len(node.slots) % page or start % page:
                return "KV-TREE-1", f"the node of {node.tokens} has {len(node.slots)} tokens"
            begun[node.salt, node.tokens[: start + page]] += 1
            if start and (node.salt, node.tokens[:start]) not in ends:
                return "KV-TREE-29", f"{node.tokens} has lost its beginning"
            if node.window_slots is not None and len(node.window_slots) != len(node.slots):
                return "KV-TREE-4", f"{node.tokens} has other slots of the window than of full"
            has_window = not self.config.window_tokens or node.window_slots is not None
            has_state = not self.config.num_states or node.state is not None
            if (node.salt, node.tokens) not in parents and not (has_window and has_state):
                return "KV-TREE-25", f"the leaf of {node.tokens} lacks a part"
        twice = [prefix for prefix, number in begun.items() if number > 1]
        return ("KV-TREE-1", f"several nodes begin {twice[0]}") if twice else None
