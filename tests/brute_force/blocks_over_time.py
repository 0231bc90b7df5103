"""The history of each block of a pool: registered, forgotten, released.

Cached blocks, and the next one to be taken, follow from the list of these events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

REGISTERED, FORGOTTEN, FREED = "registered", "forgotten", "freed"


@dataclass(frozen=True)
class Name:
    """The name of a cached block: a prefix of a text (`texts.Beginnings`), in a group."""

    group: int
    text: int
    num_tokens: int


@dataclass(frozen=True)
class Event:
    """`place`: of a freed block, what it sorts by among free ones."""

    what: str
    block: int
    name: Name | None = None
    place: tuple[int, int, int] = (0, 0, 0)


@dataclass
class Blocks:
    """All that happened, in order.

    `freed_to_front`: where blocks without a name go (KV-POL-1). `releases`: release calls so far.
    """

    num_blocks: int
    freed_to_front: bool
    events: list[Event] = field(default_factory=list)
    releases: int = 0
    known: tuple[int, dict[int, list[Name]]] = field(default_factory=lambda: (0, {}))

    def names(self) -> dict[int, list[Name]]:
        if self.known[0] != len(self.events):  # else nothing happened since the last query
            self.known = (len(self.events), self.worked_out())
        return self.known[1]

    def worked_out(self) -> dict[int, list[Name]]:
        found: dict[int, list[Name]] = {}
        for event in self.events:
            if event.what == REGISTERED and event.name is not None:
                found.setdefault(event.block, []).append(event.name)
            elif event.what == FORGOTTEN:
                found.pop(event.block, None)
        return found

    def carriers(self) -> dict[Name, list[int]]:
        """Return the blocks of each name, first registered first (KV-POOL-13)."""
        now = self.names()
        found: dict[Name, list[int]] = {}
        for event in reversed(self.events):
            if event.what == REGISTERED and event.name is not None:
                blocks = found.setdefault(event.name, [])
                if event.name in now.get(event.block, ()) and event.block not in blocks:
                    blocks.insert(0, event.block)
        return {name: blocks for name, blocks in found.items() if blocks}

    def free(self, in_use: Iterable[int]) -> list[int]:
        """Return the free blocks, the next to be taken first (KV-POOL-2, KV-POOL-6).

        First those freed without a name, of the latest call first; then those never used; then
        those freed with one, of the earliest call first.
        """
        place = {block: (1, 0, block) for block in range(1, self.num_blocks)}
        for event in self.events:
            if event.what == FREED:
                place[event.block] = event.place
        used = set(in_use)
        return sorted((block for block in place if block not in used), key=place.__getitem__)

    def register(self, block: int, name: Name) -> None:
        self.events.append(Event(REGISTERED, block, name))

    def forget(self, block: int) -> None:
        self.events.append(Event(FORGOTTEN, block))

    def release(self, blocks: Sequence[int], still_held: Iterable[int]) -> None:
        """Release blocks in one call; those without a holder become free (KV-POOL-7)."""
        self.releases += 1
        named, held = self.names(), set(still_held)
        for position, block in enumerate(blocks):
            is_last = block not in blocks[position + 1 :]
            if block and is_last and block not in held:
                front = not named.get(block) and self.freed_to_front
                place = (0, -self.releases, position) if front else (2, self.releases, position)
                self.events.append(Event(FREED, block, place=place))
