"""The device's state between steps: tables, lengths, the batch, and the message buffer.

A *place* is the number of an entry in the batch of the step. Unused places have row -1, unused
tokens place -1 and slot -1, so kernels that were captured for a larger batch skip them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import torch

from kvfast.device.base.errors import DeviceMemoryError
from kvfast.device.base.memory import free_memory_bytes
from kvfast.device.tables.geometry import Geometry

HEADER_WORDS = 8
"""Numbers of entries, lengths and places that follow; whether the batch is new; its tokens; 3
are free.
"""

SPARE_ENTRY = 1
"""An entry more than there are, so that no array is empty."""


@dataclass(frozen=True)
class Header:
    """The header of a message; its first words.

    It is followed by int32 arrays: addresses and blocks [num_entries], handles and increments of
    their lengths [num_lengths], and if the batch is new its rows and ends [num_places]. A batch
    that is not new is that of the message before, if `num_places` is not 0.
    """

    num_entries: int = 0
    num_lengths: int = 0
    num_places: int = 0
    is_new: bool = False
    num_tokens: int = 0

    @property
    def sizes(self) -> list[int]:
        """Lengths of the six arrays that follow."""
        n, m, batch = self.num_entries, self.num_lengths, self.num_places * self.is_new
        return [n, n, m, m, batch, batch]

    @property
    def num_words(self) -> int:
        """Length of the message."""
        return HEADER_WORDS + sum(self.sizes)

    def to_list(self) -> list[int]:
        """Return the words of the header."""
        used = (self.num_entries, self.num_lengths, self.num_places, self.is_new, self.num_tokens)
        return [*map(int, used), 0, 0, 0]


@dataclass(frozen=True)
class DeviceState:
    """Arrays on the device; R requests, T tokens, G groups with slots. All int32 but for the last.

    - `entries` [all entries + 1]; `num_computed` [R]: tokens of each row that have slots.
    - `rows` [R]: the row of each place. `query_start` [R + 1]: its first token.
    - `places` [T]: the place of each token. `seq_lens` [R]: of each place, the step included.
    - `staged`: the message.
    - `positions` [T], `slots` [G, T], `groups` [G, 3] (base, width, span): int64.
    """

    entries: torch.Tensor
    num_computed: torch.Tensor
    rows: torch.Tensor
    query_start: torch.Tensor
    places: torch.Tensor
    seq_lens: torch.Tensor
    staged: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: torch.Tensor


def new_state(
    geometry: Geometry, max_tokens: int, staged_words: int, device: torch.device
) -> DeviceState:
    """Make the initial state: entries are null, lengths 0, and there is no batch.

    DeviceMemoryError if there is no room for it, including two host buffers of a message.
    """
    sizes: dict[str, tuple[int, ...]] = {
        "entries": (geometry.num_entries + SPARE_ENTRY,),
        "num_computed": (geometry.max_requests,),
        "rows": (geometry.max_requests,),
        "query_start": (geometry.max_requests + 1,),
        "places": (max_tokens,),
        "seq_lens": (geometry.max_requests,),
        "staged": (staged_words,),
        "positions": (max_tokens,),
        "slots": (len(geometry.slot_groups), max_tokens),
    }
    facts = [
        (geometry.bases[g], geometry.groups[g].width, geometry.groups[g].span_tokens)
        for g in geometry.slot_groups
    ]
    wide = ("positions", "slots")
    needed = sum(prod(size) * (8 if name in wide else 4) for name, size in sizes.items())
    if device.type == "cpu":  # where the system would kill the process rather than refuse
        free = free_memory_bytes(device)
        if free is not None and needed + 2 * 4 * staged_words > free:
            raise DeviceMemoryError(str(device), needed + 2 * 4 * staged_words, free)
    try:
        made = {
            name: torch.full(
                size,
                -1 if name in ("rows", "places", "slots") else 0,
                dtype=torch.int64 if name in wide else torch.int32,
                device=device,
            )
            for name, size in sizes.items()
        }
        groups = torch.tensor(facts, dtype=torch.int64, device=device).reshape(-1, 3)
    except torch.OutOfMemoryError:
        raise DeviceMemoryError(str(device), needed, free_memory_bytes(device) or 0) from None
    return DeviceState(**made, groups=groups)


def carry_over(old: DeviceState, new: DeviceState, before: Geometry, after: Geometry) -> None:
    """Copy what is known into a state with more rows."""
    for group, start, to in zip(before.groups, before.bases, after.bases, strict=True):
        size = before.max_requests * group.width
        new.entries[to : to + size] = old.entries[start : start + size]
    kept = ("num_computed", "rows", "query_start", "places", "seq_lens", "positions", "slots")
    for name in (field.name for field in fields(DeviceState) if field.name in kept):
        source: torch.Tensor = getattr(old, name)
        getattr(new, name)[..., : source.shape[-1]] = source
    new.query_start[before.max_requests + 1 :] = old.query_start[before.max_requests]
