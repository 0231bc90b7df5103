"""A request of a tree: its tokens, and its row while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvref.tree.nodes import Node


@dataclass
class TreeRequest:
    """`last`: the node that its lock was taken on; a root while nothing is locked.

    `num_computed`: tokens that the device has computed. `window_start`: the first token that the
    lock protects for layers with a window.
    """

    salt: str
    tokens: list[int]
    priority: int
    last: Node
    session: str = ""
    is_running: bool = False
    slots: list[int] = field(default_factory=list)
    window_slots: list[int | None] = field(default_factory=list)
    state: int | None = None
    num_computed: int = 0
    window_start: int = 0

    @property
    def num_protected(self) -> int:
        return self.last.end

    def lock(self, node: Node, window_tokens: int) -> None:
        """Lock a path: for the window only whole nodes with its last tokens (KV-TREE-9)."""
        self.last, self.window_start = node, node.end
        for each in reversed(node.path()):
            if node.end - self.window_start < window_tokens:
                self.window_start = each.start

    def take_cached(self, *, has_window: bool) -> None:
        """Let the row begin with the slots of the locked path; what no lock protects is None."""
        self.slots, self.window_slots = [], []
        for node in self.last.path():
            self.slots += node.slots
            if has_window and node.end > self.window_start:
                self.window_slots += node.window_slots or []
            elif has_window:
                self.window_slots += [None] * len(node.key)

    def leave(self, root: Node) -> None:
        """Forget the row."""
        self.is_running, self.last, self.state = False, root, None
        self.slots, self.window_slots = [], []
        self.num_computed = self.window_start = 0
