"""The three operations of the tables in plain torch, which the kernels beside it must match."""

from __future__ import annotations

import torch

from kvfast.device.tables.geometry import Geometry, GroupTable
from kvfast.device.tables.state import HEADER_WORDS, DeviceState, Header


def apply(state: DeviceState, header: Header) -> None:
    """Do what the message says: entries, lengths, the batch, and its tokens added to lengths.

    The addresses of a message differ, and lengths are added, so the order never matters.
    """
    words = state.staged[HEADER_WORDS : header.num_words]
    addresses, blocks, handles, added, rows, ends = words.split_with_sizes(header.sizes)
    state.entries[addresses.long()] = blocks
    state.num_computed.index_add_(0, handles.long(), added)
    if header.is_new:
        _new_batch(state, header, rows, ends)
    granted = state.rows[: header.num_places].long()
    counts = state.query_start[: header.num_places + 1].diff()
    state.num_computed.index_add_(0, granted, counts)


def _new_batch(state: DeviceState, header: Header, rows: torch.Tensor, ends: torch.Tensor) -> None:
    """Keep the batch, and where each of its tokens belongs."""
    num = header.num_places
    state.rows[:num] = rows
    state.rows[num:] = -1
    state.query_start[1 : num + 1] = ends
    state.query_start[num + 1 :] = header.num_tokens
    places = torch.arange(num, dtype=torch.int32, device=rows.device)
    counts = state.query_start[: num + 1].diff()
    state.places[: header.num_tokens] = torch.repeat_interleave(
        places, counts, output_size=header.num_tokens
    )
    state.places[header.num_tokens :] = -1


def outputs(state: DeviceState, geometry: Geometry) -> None:
    """Compute positions and slots of all tokens, and sequence lengths of all places.

    The last token of a place is at its length - 1, so a token's position is found from the end. A
    token without a block, or in the null block, has slot -1: nothing must be written there.
    """
    is_used = state.rows >= 0
    lengths = state.num_computed[state.rows.clamp(min=0).long()]
    state.seq_lens.copy_(torch.where(is_used, lengths, 0))

    is_token = state.places >= 0
    place = state.places.clamp(min=0).long()
    tokens = torch.arange(len(place), dtype=torch.int32, device=place.device)
    before_end = state.query_start[place + 1] - tokens
    position = torch.where(is_token, state.seq_lens[place] - before_end, -1)
    state.positions.copy_(position.clamp(min=0))
    row = state.rows[place].long()
    for out, number in zip(state.slots, geometry.slot_groups, strict=True):
        group = geometry.groups[number]
        index = position.clamp(min=0) // group.span_tokens
        has_block = (position >= 0) & (index < group.width)
        at = geometry.bases[number] + row * group.width + index
        block = torch.where(has_block, state.entries[torch.where(has_block, at, 0)], 0).long()
        slot = block * group.span_tokens + position % group.span_tokens
        out.copy_(torch.where(block > 0, slot, -1))


def gather(state: DeviceState, base: int, group: GroupTable, out: torch.Tensor) -> None:
    """Copy the batch's rows of one group into out [R, width], as far as each is needed.

    That is the blocks of the sequence, or the whole row in a group without slots. The rest of `out`
    is unchanged.
    """
    row = state.rows.clamp(min=0).long()
    columns = torch.arange(group.width, device=row.device)
    needed = torch.full_like(row, group.width)
    if group.has_slots:
        needed = (state.seq_lens.long() + group.span_tokens - 1) // group.span_tokens
    is_needed = (columns < needed[:, None]) & (state.rows >= 0)[:, None]
    read = state.entries[base + row[:, None] * group.width + columns]
    out.copy_(torch.where(is_needed, read, out))
