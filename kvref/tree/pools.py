"""Pools of slots, given in whole pages, the lowest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Pool:
    """`free`: pages without a node or a row, ascending."""

    def __init__(self, num_slots: int, page_size: int = 1) -> None:
        self.num_slots, self.page_size = num_slots, page_size
        self.free = list(range(num_slots // page_size))

    @property
    def num_free(self) -> int:
        return len(self.free) * self.page_size

    def give_back(self, slots: Iterable[int | None]) -> int:
        """Take back the pages of these slots; returns how many slots that frees."""
        pages = {slot // self.page_size for slot in slots if slot is not None}
        self.free = sorted([*self.free, *pages])
        return len(pages) * self.page_size

    def fill(self, slots: list[Any], length: int) -> None:
        """Lengthen a row, whose own tokens begin with a page, to `length` tokens."""
        while len(slots) < length:
            is_page_full = len(slots) % self.page_size == 0
            slots.append(self.free.pop(0) * self.page_size if is_page_full else slots[-1] + 1)

    def missing(self, length: int, new_length: int) -> int:
        """Return how many slots of new pages a row of `length` tokens needs for `new_length`."""
        return self.whole(new_length) - self.whole(length)

    def whole(self, length: int) -> int:
        """Return `length` rounded up to whole pages."""
        return -(-length // self.page_size) * self.page_size
