"""Requirements of an allocation: as a caller states them, and as groups count blocks for them."""

from __future__ import annotations


class Asked:
    """The numbers of one allocation, set by `of` and then one by one; the object is reused.

    - `new`, `lookahead`: tokens. `local`, `external`, `skip_at`, `encoder`: as in `Demand`.
    - `reserved`, `watermark`: blocks that must stay free (KV-MGR-7, KV-MGR-9).
    - `has_hits`: blocks were found. `whole_must_fit`: of the whole request (KV-MGR-5).
    """

    def __init__(self) -> None:
        self.of(0, 0, 0)

    def of(self, new: int, lookahead: int, local: int) -> Asked:
        """Set these numbers, and the others to nothing; return the object."""
        self.new = new
        self.lookahead = lookahead
        self.local = self.skip_at = local
        self.external = self.encoder = self.reserved = self.watermark = 0
        self.has_hits = self.whole_must_fit = False
        return self


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
