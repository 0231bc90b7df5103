"""Calls of a tree that are illegal (KV-TREE-32, KV-TREE-33)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kvcheck.tree.device import Running
from kvspec.tree import PrefixTree


def illegal_calls(
    tree: PrefixTree, requests: Mapping[str, Running]
) -> list[tuple[str, str, Callable[[], object]]]:
    """Return the rule, a name and the call of each."""
    running = [name for name, each in requests.items() if each.is_running]
    waiting = [name for name in requests if name not in running]
    calls: list[tuple[str, str, Callable[[], object]]] = [
        ("KV-TREE-33", "finish nobody", lambda: tree.finish("nobody")),
        ("KV-TREE-33", "evict -1", lambda: tree.evict(-1)),
    ]
    for name in running:
        calls += [
            ("KV-TREE-33", f"admit {name} again", partial(tree.admit, name, 1)),
            ("KV-TREE-33", f"extend {name} 1000", partial(tree.extend, name, 1000)),
            ("KV-TREE-32", "reset", tree.reset),
        ]
    for name in waiting:
        calls += [
            ("KV-TREE-33", f"arrive {name} [1]", partial(tree.arrive, name, [1])),
            ("KV-TREE-33", f"checkpoint {name}", partial(tree.checkpoint, name)),
            ("KV-TREE-33", f"extend {name} 1", partial(tree.extend, name, 1)),
        ]
    return calls
