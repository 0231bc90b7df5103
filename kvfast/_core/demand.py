"""The demand of an allocation."""

from __future__ import annotations


class Demand:
    """Numbers of tokens, set only by `of`; the object is reused, since making one is slow.

    - `slots`: all that must have slots. `main`: without lookahead, and beyond the longest sequence.
    - `local`: computed or hit here. `external`: brought from elsewhere now.
    - `skip_at`: computed tokens that windows are computed from. `encoder`: of cross attention.
    """

    def __init__(self) -> None:
        self.of(0, 0, 0, 0, 0, 0)

    def of(
        self, slots: int, main: int, local: int, external: int, skip_at: int, encoder: int
    ) -> Demand:
        """Set the numbers and return this demand."""
        self.slots = slots
        self.main = main
        self.local = local
        self.external = external
        self.skip_at = skip_at
        self.encoder = encoder
        return self
