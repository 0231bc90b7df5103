"""Inserting into a table of hashes and looking up there, in plain torch."""

from __future__ import annotations

import torch

from kvfast.device.hashing.prompts import Prompts
from kvfast.device.index.table import EMPTY, IndexTable


def insert(table: IndexTable, first: int, end: int) -> None:
    """Give entries `first` … `end - 1` their slots; their hashes must be in place, none twice.

    All advance at once: each slot keeps the smallest entry that wants it, the others try the next.
    """
    entries = torch.arange(first, end, device=table.slots.device)
    wanted = table.hashes[first:end, 0].long() & table.slot_mask
    while len(entries):
        before = table.slots[wanted].long()
        table.slots.scatter_reduce_(0, wanted, entries.int(), "amin")
        is_in = table.slots[wanted] == entries
        is_out = is_in & (before != EMPTY)
        entries = torch.cat((entries[~is_in], before[is_out]))
        wanted = torch.cat((wanted[~is_in], wanted[is_out])) + 1 & table.slot_mask


def lookup(
    table: IndexTable, prompts: Prompts, hashes: torch.Tensor, num_dropped: int, span_tokens: int
) -> torch.Tensor:
    """Return hit lengths, int32 [P]: the leading hashes of each prompt that are live, less the
    dropped.
    """
    _, first_hash, counts = prompts.columns
    found = is_found(table, hashes)
    # The hashes found before each one; a run ends where the next is not found.
    missing = torch.cat(((~found).long().cumsum(0), torch.zeros_like(counts[:1])))
    before = torch.where(first_hash > 0, missing[first_hash - 1], 0)
    owner = torch.repeat_interleave(
        torch.arange(len(prompts), device=counts.device), counts, output_size=len(hashes)
    )
    is_run = found & (missing[:-1] == before[owner])
    run = torch.zeros_like(counts).index_add_(0, owner, is_run.long())
    return ((run - num_dropped).clamp(min=0) * span_tokens).int()


def is_found(table: IndexTable, hashes: torch.Tensor) -> torch.Tensor:
    """Return which hashes [n, 8] are those of live entries."""
    found = torch.zeros(len(hashes), dtype=torch.bool, device=hashes.device)
    searched = torch.arange(len(hashes), device=hashes.device)
    slot = hashes[:, 0].long() & table.slot_mask
    while len(searched):
        entry = table.slots[slot].long()
        is_entry = entry != EMPTY
        searched, slot, entry = searched[is_entry], slot[is_entry], entry[is_entry]
        is_same = (table.hashes[entry] == hashes[searched]).all(1)
        found[searched[is_same]] = table.is_live[entry[is_same]] != 0
        searched, slot = searched[~is_same], slot[~is_same] + 1 & table.slot_mask
    return found
