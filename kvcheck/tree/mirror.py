"""The host's copies of a tree's nodes, as lives follow and judge them (KV-TREE-38 …)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvcheck.tree.device import Content
from kvspec.tree import Transfer, TreeConfig, TreeNode

Judge = Callable[..., None]
"""`Shadow.judge`."""


def on_device(nodes: Iterable[TreeNode]) -> tuple[TreeNode, ...]:
    return tuple(node for node in nodes if node.slots)


def anywhere(nodes: Iterable[TreeNode]) -> tuple[TreeNode, ...]:
    """Return the nodes with slots of the host where they have none of the device."""
    return tuple(
        node if node.slots else replace(node, slots=node.host_slots or ()) for node in nodes
    )


@dataclass
class Mirror:
    """`content`: of the host's slots; what is not there was never written.

    `stores`: under way, by number; `loads`: those that the next run makes. `wanted`: what the
    device's slots in nodes should have.
    """

    config: TreeConfig
    judge: Judge
    content: dict[int, Content] = field(default_factory=dict)
    stores: dict[int, Transfer] = field(default_factory=dict)
    loads: list[Transfer] = field(default_factory=list)
    wanted: dict[int, Content] = field(default_factory=dict)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        for each in transfers:
            lengths = len(each.slots), len(each.host_slots)
            self.judge("KV-TREE-38", lengths[0] == lengths[1] > 0, f"{each} copies {lengths}")
            if each.is_store:
                self.stores[each.number] = each
            else:
                self.loads.append(each)

    def complete(self, number: int, full: dict[int, Content]) -> None:
        """Copy slots as late as can be: when the store is said to be done."""
        done = self.stores.pop(number)
        for slot, host_slot in zip(done.slots, done.host_slots, strict=True):
            self.content[host_slot] = full.get(slot, ("never written", ()))

    def load(self, full: dict[int, Content]) -> None:
        for each in self.loads:
            for slot, host_slot in zip(each.slots, each.host_slots, strict=True):
                full[slot] = self.content.get(host_slot, ("never written", ()))
                is_so = full[slot] == self.wanted.get(slot, full[slot])
                problem = f"slot {slot} is loaded with something else"
                self.judge("KV-TREE-40", is_so, problem, "KV-TREE-39", "KV-TREE-38")
        self.loads = []

    @property
    def locked(self) -> set[int]:
        """Slots that transfers under way read or write."""
        transfers = [*self.stores.values(), *self.loads]
        return {slot for each in transfers for slot in each.slots}

    @property
    def loading(self) -> set[int]:
        return {slot for each in self.loads for slot in each.slots}

    def fit(self, nodes: Sequence[TreeNode], rule: str) -> None:
        """Judge owners and contents of the host's slots, and what lies behind what."""
        by_end = {(node.salt, node.tokens): node for node in nodes}
        page = self.config.page_size_tokens
        pages: Counter[int] = Counter()
        there = {slot for node in nodes for slot in node.slots}
        problem = f"of {sorted(self.locked - there)} no node is left, and they are being copied"
        self.judge("KV-TREE-38", self.locked <= there, problem, "KV-TREE-11")
        under_way = {slot for each in self.stores.values() for slot in each.host_slots}
        for node in nodes:
            copy = node.host_slots or ()
            pages.update(slot // page for slot in copy[::page])
            length = len(node.slots) or len(copy)
            start = len(node.tokens) - length
            ends = range(start + 1, len(node.tokens) + 1)
            contents = ((node.salt, node.tokens[:end]) for end in ends)
            self.wanted.update(zip(node.slots, contents, strict=False))
            above = by_end.get((node.salt, node.tokens[:start]))
            is_so = above is None or bool(above.slots) or not node.slots
            problem = f"{list(node.tokens)} has slots, and the node above it has none"
            self.judge("KV-TREE-39", is_so, problem)
            is_so = above is None or node.host_slots is None or above.host_slots is not None
            problem = f"{list(node.tokens)} has a copy, and the node above it has none"
            self.judge("KV-TREE-38", is_so, problem, "KV-TREE-41")
            is_so = not copy or len(copy) == length
            self.judge("KV-TREE-38", is_so, f"{node} has a copy of other length", "KV-TREE-3")
            for at, slot in enumerate(copy):
                wanted = node.salt, node.tokens[: start + at + 1]
                is_so = slot in under_way or self.content.get(slot) == wanted
                problem = (
                    f"the copy of {list(node.tokens)} has something else at token {start + at}"
                )
                self.judge("KV-TREE-39", is_so, problem, "KV-TREE-38", "KV-TREE-3", "KV-TREE-41")
        twice = sorted(each for each, number in pages.items() if number > 1)
        self.judge("KV-TREE-41", not twice, f"{twice} of the host have several nodes", rule)

    def stored(self, nodes: Sequence[TreeNode], salt: str, tokens: Sequence[int]) -> None:
        """Judge that a path that was just stored has copies, as far as there is room."""
        used = sum(len(node.host_slots or ()) for node in nodes)
        room = self.config.num_host_slots - used
        path = [n for n in nodes if n.salt == salt and tuple(tokens[: len(n.tokens)]) == n.tokens]
        for node in sorted(path, key=lambda each: len(each.tokens)):
            if node.host_slots is None:
                problem = f"{list(node.tokens)} has no copy, and {room} slots of the host are free"
                self.judge("KV-TREE-38", room < len(node.slots), problem, "KV-TREE-41")
                return

    def evicted(self, before: Sequence[TreeNode], nodes: Sequence[TreeNode]) -> None:
        """Judge that what had a copy is kept on the host."""
        ends = {(node.salt, node.tokens) for node in nodes}
        gone = [list(n.tokens) for n in before if n.host_slots and (n.salt, n.tokens) not in ends]
        self.judge("KV-TREE-39", not gone, f"{gone} had a copy, and are gone")
