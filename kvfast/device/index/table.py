"""A table of hashes on a device: entries with whole hashes, and slots by which they are found.

Open addressing, one slot after another from a hash's home on. If two entries want one slot, the
smaller number gets it, so the slots depend only on the inserted entries, never on their order.

    hashes[entry]  32 bytes     is_live[entry]  0 if it left     slots[…]  an entry, or EMPTY
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvfast.device.base.backend import Backend, form_of
from kvfast.device.base.memory import on_device
from kvfast.device.hashing.sha256 import DIGEST_WORDS
from kvfast.device.index.keys import Changes

EMPTY = 2**31 - 1


@dataclass(frozen=True)
class IndexTable:
    """Tensors on one device: int32 [entries, 8], [entries], [slots].

    There are twice as many slots as entries or more, a power of two, so every search ends.
    """

    hashes: torch.Tensor
    is_live: torch.Tensor
    slots: torch.Tensor

    @staticmethod
    def empty(max_entries: int, device: torch.device) -> IndexTable:
        """Make a table without entries, with room for `max_entries`."""
        num_slots = 2 << (max_entries - 1).bit_length()
        return IndexTable(
            torch.zeros((max_entries, DIGEST_WORDS), dtype=torch.int32, device=device),
            torch.zeros(max_entries, dtype=torch.int32, device=device),
            torch.full((num_slots,), EMPTY, dtype=torch.int32, device=device),
        )

    @property
    def slot_mask(self) -> int:
        """Bits of a hash that select its home slot."""
        return len(self.slots) - 1

    def apply(self, changes: Changes, backend: Backend) -> None:
        """Add entries, and mark those that died or live again. Does not wait for the device."""
        device = self.slots.device
        first, end = changes.first, changes.first + len(changes.new)
        if changes.new:
            words = torch.frombuffer(bytearray(b"".join(changes.new)), dtype=torch.int32)
            self.hashes[first:end] = on_device(words.view(-1, DIGEST_WORDS), device)
            self.is_live[first:end] = 1
            form_of(__package__, backend).insert(self, first, end)
        if changes.lives:
            pairs = torch.tensor([[*changes.lives], [*changes.lives.values()]])
            entries, lives = on_device(pairs, device)
            self.is_live[entries] = lives.int()
