"""Audit a tree after each call: its shape, and one owner for each slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvref.tree.nodes import Node, is_whole
from kvspec.errors import InvariantViolation
from kvspec.tree import Part

if TYPE_CHECKING:
    from kvref.tree.room import Room


def audit(tree: Room) -> None:
    """Raise InvariantViolation for the first rule that does not hold."""
    for root in tree.roots.values():
        for node in root.below():
            keys = [child.key for child in node.children]
            is_paged = all(key and len(key) % tree.page_size == 0 for key in keys)
            first = {key[: tree.page_size] for key in keys}
            _require("KV-TREE-1", is_paged and len(first) == len(keys), f"children {keys}")
            _require("KV-TREE-4", _has_slots(node), f"slots of {node.tokens}")
            is_leaf = node is not root and not node.children
            _require(
                "KV-TREE-25", not is_leaf or is_whole(node, tree.config), f"leaf {node.tokens}"
            )
    for part in Part:
        pool = tree.pools[part]
        pages = Counter(_owned_pages(tree, part))
        is_so = set(pages.values()) <= {1} and len(pages) * pool.page_size == pool.num_slots
        _require("KV-TREE-5", is_so, f"owners of the pages of {part}: {dict(pages)}")
        counts = tree.counts(part)
        used = counts.num_evictable + counts.num_protected + counts.num_rows
        _require("KV-TREE-12", counts.num_free + used == pool.num_slots, f"{part}: {counts}")

    copies = [node.host_slots or [] for root in tree.roots.values() for node in root.below()]
    owned = [slot // tree.page_size for slots in copies for slot in slots[:: tree.page_size]]
    held = sorted([*tree.host.free, *owned])
    _require("KV-TREE-41", held == list(range(len(held))), f"pages on the host: {held}")


def _has_slots(node: Node) -> bool:
    """Check that a node is on the device, or alone on the host, and so are those below it."""
    if node.slots or node.parent is None:
        return len(node.slots) == len(node.key)
    return node.host_slots is not None and not any(child.slots for child in node.children)


def _require(rule: str, holds: bool, detail: str) -> None:
    if not holds:
        raise InvariantViolation("tree", rule, detail)


def _owned_pages(tree: Room, part: Part) -> list[int]:
    """Return the pages of a pool, once for each place that owns them."""
    pool = tree.pools[part]
    owners: list[Sequence[int | None]] = [[page * pool.page_size] for page in pool.free]
    for root in tree.roots.values():
        for node in root.below():
            owners.append(_slots(part, node.slots, node.window_slots or (), node.state))
    for request in tree.requests.values():
        own, own_window = request.slots, request.window_slots
        at = request.num_protected
        owners.append(_slots(part, own[at:], own_window[at:], request.state))
    pages = [{slot // pool.page_size for slot in each if slot is not None} for each in owners]
    return [page for each in pages for page in each]


def _slots(
    part: Part, full: Sequence[int], window: Sequence[int | None], state: int | None
) -> Sequence[int | None]:
    return full if part == Part.FULL else window if part == Part.WINDOW else (state,)
