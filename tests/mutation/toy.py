"""A small thing to be mutated: how many of a list are large."""

from __future__ import annotations

from collections.abc import Iterable


class Counted:
    """Numbers above a bound; `bound`: 3 if nothing is said."""

    def __init__(self, numbers: Iterable[int], bound: int = 3) -> None:
        self.large = [number for number in numbers if number > bound]

    @property
    def how_many(self) -> int:
        """Of the numbers given."""
        if min(self.large, default=0) < 0:
            raise ValueError(f"{self.large} are no sizes", "a text of no interest")
        return len(self.large)
