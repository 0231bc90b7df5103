"""What is seen of a tree before a call, and its words in reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvspec.tree import Part, TreeConfig, TreeCounts, TreeNode


@dataclass(frozen=True)
class Before:
    """What was seen before a call. `nodes`: those on the device; `mirrored`: with the host's."""

    counts: Mapping[Part, TreeCounts] = field(default_factory=dict)
    nodes: tuple[TreeNode, ...] = ()
    mirrored: tuple[TreeNode, ...] = ()

    def room(self, part: Part) -> int:
        return self.counts[part].num_free + self.counts[part].num_evictable


def shown(needed: Mapping[Part, int]) -> str:
    return ", ".join(f"{number} {part}" for part, number in needed.items())


def room_of(before: Before) -> str:
    return ", ".join(f"{before.room(part)} {part}" for part in before.counts)


def needed_slots(
    config: TreeConfig, length: int, new_length: int, *, is_new: bool = False
) -> dict[Part, int]:
    """Return the free slots that a row of `length` tokens needs for `new_length`."""
    page = config.page_size_tokens
    pages = -(-new_length // page) - -(-length // page)
    found = {Part.FULL: pages * page}
    if config.window_tokens:
        found[Part.WINDOW] = pages * page
    return {**found, Part.STATE: 1} if config.num_states and is_new else found
