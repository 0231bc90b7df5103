"""What an allocation asks for."""

from __future__ import annotations


class Demand:
    """Numbers of tokens. Only `of` sets them; it is kept and filled again, since making it is slow.

    - `slots`: all that must have slots. `main`: without lookahead, and beyond the longest sequence.
    - `local`: computed or hit here. `external`: brought from elsewhere now.
    - `skip_at`: computed tokens at which windows are looked at.
    - `encoder`: those of cross attention.
    """

    def __init__(self) -> None:
        self.of(0, 0, 0, 0, 0, 0)

    def of(
        self, slots: int, main: int, local: int, external: int, skip_at: int, encoder: int
    ) -> Demand:
        """This demand, for these numbers."""
        self.slots = slots
        self.main = main
        self.local = local
        self.external = external
        self.skip_at = skip_at
        self.encoder = encoder
        return self
