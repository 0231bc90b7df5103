"""The operations of `plain` as kernels, for launches that are always the same.

The amount of work is read from the device, so no launch depends on the step: it can be captured in
a CUDA graph, and nothing is ever recompiled. Each program takes a block of 256 and then further
ones that no other program takes.

Slots are computed from entries that `apply` writes, perhaps in another program. Only the end of a
kernel makes its writes visible to all programs, so there are two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvfast.device.tables.geometry import Geometry, GroupTable
from kvfast.device.tables.state import HEADER_WORDS, DeviceState, Header

_BLOCK = 256
_MAX_PROGRAMS = 64
_HEADER = tl.constexpr(HEADER_WORDS)


@triton.jit
def _take_batch(
    new_rows, num_places, num_tokens, rows, query_start, places, max_requests, max_tokens,
    SEARCH_STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    stride = tl.num_programs(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    new_ends = new_rows + num_places
    for start in range(first, max_requests, stride):
        i = start + lane
        row = tl.load(new_rows + i, mask=i < num_places, other=-1)
        tl.store(rows + i, row, mask=i < max_requests)
        end = tl.load(new_ends + i, mask=i < num_places, other=0)
        end = tl.where(i < num_places, end, num_tokens)
        tl.store(query_start + i + 1, end, mask=i < max_requests)
    for start in range(first, max_tokens, stride):
        token = start + lane
        # The number of places that end at or before it: the ends ascend.
        low = tl.zeros_like(token)
        high = low + num_places
        for _ in tl.static_range(SEARCH_STEPS):
            middle = (low + high) // 2
            end = tl.load(new_ends + middle, mask=low < high, other=0)
            is_behind = (low < high) & (end <= token)
            high = tl.where((low < high) & (end > token), middle, high)
            low = tl.where(is_behind, middle + 1, low)
        place = tl.where(token < num_tokens, low, -1)
        tl.store(places + token, place, mask=token < max_tokens)


@triton.jit
def _add_granted(
    new_rows, num_places, is_new, num_computed, rows, query_start, max_requests,
    BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    stride = tl.num_programs(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    new_ends = new_rows + num_places
    # Tokens of the step are added to lengths. A new batch is read from the message: what is kept
    # of it is written by other programs at the same time.
    num_told = tl.where(is_new != 0, num_places, 0)
    num_kept = num_places - num_told
    for start in range(first, num_places, stride):
        i = start + lane
        told = i < num_told
        kept = i < num_kept
        row = tl.load(new_rows + i, mask=told, other=-1)
        row = tl.where(kept, tl.load(rows + i, mask=kept, other=-1), row)
        end = tl.load(new_ends + i, mask=told, other=0)
        end = tl.where(kept, tl.load(query_start + i + 1, mask=kept, other=0), end)
        begin = tl.load(new_ends + i - 1, mask=told & (i > 0), other=0)
        begin = tl.where(kept, tl.load(query_start + i, mask=kept, other=0), begin)
        is_row = (row >= 0) & (row < max_requests)
        tl.atomic_add(num_computed + row, end - begin, mask=is_row, sem="relaxed")


@triton.jit
def _apply(
    staged, entries, num_computed, rows, query_start, places, num_all_entries, max_requests,
    max_tokens, SEARCH_STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    stride = tl.num_programs(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    num_entries = tl.load(staged)
    num_lengths = tl.load(staged + 1)
    num_places = tl.load(staged + 2)
    is_new = tl.load(staged + 3)
    num_tokens = tl.load(staged + 4)
    addresses = staged + _HEADER
    handles = addresses + 2 * num_entries
    new_rows = handles + 2 * num_lengths

    for start in range(first, num_entries, stride):
        i = start + lane
        at = tl.load(addresses + i, mask=i < num_entries, other=-1)
        block = tl.load(addresses + num_entries + i, mask=i < num_entries, other=0)
        tl.store(entries + at, block, mask=(at >= 0) & (at < num_all_entries))

    for start in range(first, num_lengths, stride):
        i = start + lane
        row = tl.load(handles + i, mask=i < num_lengths, other=-1)
        added = tl.load(handles + num_lengths + i, mask=i < num_lengths, other=0)
        is_row = (row >= 0) & (row < max_requests)
        tl.atomic_add(num_computed + row, added, mask=is_row, sem="relaxed")

    _add_granted(new_rows, num_places, is_new, num_computed, rows, query_start, max_requests, BLOCK)
    if is_new != 0:
        _take_batch(
            new_rows, num_places, num_tokens, rows, query_start, places, max_requests, max_tokens,
            SEARCH_STEPS, BLOCK,
        )  # fmt: skip


@triton.jit
def _outputs(
    entries, num_computed, rows, query_start, places, seq_lens, positions, slots, groups,
    max_requests, max_tokens, num_groups, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.program_id(1)
    place = tl.load(places + i, mask=i < max_tokens, other=-1)
    is_token = place >= 0
    row = tl.load(rows + place, mask=is_token, other=0)
    end = tl.load(query_start + place + 1, mask=is_token, other=0)
    length = tl.load(num_computed + row, mask=is_token, other=0)
    position = tl.where(is_token, length - (end - i), -1)
    if number == 0:
        shown = tl.maximum(position, 0).to(tl.int64)
        tl.store(positions + i, shown, mask=i < max_tokens)
        own = tl.load(rows + i, mask=i < max_requests, other=-1)
        seq_len = tl.load(num_computed + own, mask=own >= 0, other=0)
        tl.store(seq_lens + i, seq_len, mask=i < max_requests)
    if number < num_groups:
        base = tl.load(groups + 3 * number)
        width = tl.load(groups + 3 * number + 1)
        span = tl.load(groups + 3 * number + 2).to(tl.int32)
        index = position // span
        has_block = (position >= 0) & (index < width)
        at = base + row.to(tl.int64) * width + index
        block = tl.load(entries + at, mask=has_block, other=0)
        slot = block.to(tl.int64) * span + position % span
        slot = tl.where(block > 0, slot, -1)
        tl.store(slots + number.to(tl.int64) * max_tokens + i, slot, mask=i < max_tokens)


@triton.jit
def _gather(
    entries, rows, seq_lens, out, base, width, span, HAS_SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place).to(tl.int64)
    needed = tl.where(row >= 0, width, 0)
    if HAS_SLOTS:
        needed = tl.minimum((tl.load(seq_lens + place) + span - 1) // span, needed)
    for start in range(0, needed, BLOCK):
        column = start + tl.arange(0, BLOCK)
        block = tl.load(entries + base + row * width + column, mask=column < needed, other=0)
        tl.store(out + place * width + column, block, mask=column < needed)


def apply(state: DeviceState, header: Header) -> None:
    """Do as `plain.apply`; the header is read from the message itself."""
    max_requests, max_tokens = len(state.rows), len(state.places)
    most = max(max_requests, max_tokens)
    _apply[(min(triton.cdiv(most, _BLOCK), _MAX_PROGRAMS),)](
        state.staged, state.entries, state.num_computed, state.rows, state.query_start,
        state.places, len(state.entries), max_requests, max_tokens,
        SEARCH_STEPS=max_requests.bit_length(), BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip


def outputs(state: DeviceState, geometry: Geometry) -> None:
    """Do as `plain.outputs`, with a program per block of tokens and group."""
    max_requests, max_tokens = len(state.rows), len(state.places)
    num_groups = len(geometry.slot_groups)
    _outputs[(triton.cdiv(max(max_requests, max_tokens), _BLOCK), max(1, num_groups))](
        state.entries, state.num_computed, state.rows, state.query_start, state.places,
        state.seq_lens, state.positions, state.slots, state.groups, max_requests, max_tokens,
        num_groups, BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip


def gather(state: DeviceState, base: int, group: GroupTable, out: torch.Tensor) -> None:
    """Do as `plain.gather`, with a program per place."""
    _gather[(len(state.rows),)](
        state.entries, state.rows, state.seq_lens, out, base, group.width, group.span_tokens,
        HAS_SLOTS=group.has_slots, BLOCK=1024, enable_fp_fusion=False,
    )  # fmt: skip
