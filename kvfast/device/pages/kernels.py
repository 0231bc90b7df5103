"""Operations on pages as Triton kernels; `plain.py` defines what they must do.

All memory is accessed as integers of its width, so that formats are those of `format_kernels.py`.
One program moves the vectors of some tokens and heads, or up to CHUNK words of one page. One launch
moves pages of all allocations: their addresses are in a table, int64 rows (address, stride, size)
in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from kvfast.device.pages import formats
from kvfast.device.pages.format_kernels import decode, encode
from kvfast.device.pages.segments import Segments

CHUNK_BYTES = 8192
TILE = 2048
"""Elements of a program that moves tokens: 16 for each of its threads."""


@triton.jit
def _vectors(slots, num_tokens, num_slots, BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr,
             TILE_TOKENS: tl.constexpr, TILE_HEADS: tl.constexpr):  # fmt: skip
    """Return for each vector of a program: token, head, validity, slot validity, block, offset."""
    row = tl.arange(0, TILE_TOKENS * TILE_HEADS)
    token = tl.program_id(0).to(tl.int64) * TILE_TOKENS + row // TILE_HEADS
    head = (tl.program_id(1) * TILE_HEADS + row % TILE_HEADS).to(tl.int64)
    is_there = (token < num_tokens) & (head < HEADS)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1).to(tl.int64)
    is_slot = is_there & (slot >= BLOCK_SIZE) & (slot < num_slots)
    slot = tl.where(is_slot, slot, 0)
    return token, head, is_there, is_slot, slot // BLOCK_SIZE, slot % BLOCK_SIZE


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["slots"])
def _store_kernel(
    tokens, token_stride, head_stride,
    part, block_pitch, slot_pitch, head_pitch,
    scales, scale_block_pitch, scale_slot_pitch, scale_head_pitch,
    slots, num_tokens, num_slots, scale,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, LIMIT: tl.constexpr,
    TILE_TOKENS: tl.constexpr, TILE_HEADS: tl.constexpr, COLUMNS: tl.constexpr,
    GIVEN: tl.constexpr, STORED: tl.constexpr, SCALED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    token, head, is_there, is_slot, block, offset = _vectors(
        slots, num_tokens, num_slots, BLOCK_SIZE, HEADS, TILE_TOKENS, TILE_HEADS
    )
    element = tl.arange(0, COLUMNS)
    inside = (element < SIZE)[None, :]
    address = (token * token_stride + head * head_stride)[:, None] + element[None, :]
    # Not masked by what the slot is: so it need not be known yet.
    words = tl.load(tokens + address, mask=is_there[:, None] & inside, other=0)
    if GIVEN != STORED:
        values = decode(words, GIVEN)
        divisor = tl.full((TILE_TOKENS * TILE_HEADS,), scale, tl.float32)
        if SCALED:
            # NaN has no size: chips differ in the maximum of values with NaN.
            sizes = tl.where(values == values, tl.abs(values), 0.0)
            limit = tl.full((TILE_TOKENS * TILE_HEADS,), LIMIT, tl.float32)
            divisor = tl.math.div_rn(tl.max(sizes, axis=1), limit)
            divisor = tl.where(divisor == 0.0, 1.0, divisor)
            place = block * scale_block_pitch + offset * scale_slot_pitch + head * scale_head_pitch
            tl.store(scales + place, divisor, mask=is_slot)
        wide = tl.broadcast_to(divisor[:, None], (TILE_TOKENS * TILE_HEADS, COLUMNS))
        divided = values * wide if INVERSE else tl.math.div_rn(values, wide)
        words = encode(divided, STORED)
    place = (block * block_pitch + offset * slot_pitch + head * head_pitch)[:, None]
    tl.store(part + place + element[None, :], words, mask=is_slot[:, None] & inside)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["slots"])
def _load_kernel(
    result,
    part, block_pitch, slot_pitch, head_pitch,
    scales, scale_block_pitch, scale_slot_pitch, scale_head_pitch,
    slots, num_tokens, num_slots, scale,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    TILE_TOKENS: tl.constexpr, TILE_HEADS: tl.constexpr, COLUMNS: tl.constexpr,
    STORED: tl.constexpr, WANTED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token, head, is_there, is_slot, block, offset = _vectors(
        slots, num_tokens, num_slots, BLOCK_SIZE, HEADS, TILE_TOKENS, TILE_HEADS
    )
    element = tl.arange(0, COLUMNS)
    inside = (element < SIZE)[None, :]
    valid = is_slot[:, None] & inside
    place = (block * block_pitch + offset * slot_pitch + head * head_pitch)[:, None]
    words = tl.load(part + place + element[None, :], mask=valid, other=0)
    if STORED != WANTED:
        factor = tl.full((TILE_TOKENS * TILE_HEADS,), scale, tl.float32)
        if SCALED:
            place = block * scale_block_pitch + offset * scale_slot_pitch + head * scale_head_pitch
            factor = tl.load(scales + place, mask=is_slot, other=0.0)
        words = encode(decode(words, STORED) * factor[:, None], WANTED)
        words = tl.where(valid, words, tl.zeros_like(words))
    address = ((token * HEADS + head) * SIZE)[:, None] + element[None, :]
    tl.store(result + address, words, mask=is_there[:, None] & inside)


@triton.jit
def _copy_kernel(
    sources, destinations, source_ids, destination_ids, num_sources, num_destinations,
    WORD: tl.constexpr, ALIGNMENT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    row = tl.program_id(1) * 3
    first = tl.load(source_ids + pair).to(tl.int64)
    second = tl.load(destination_ids + pair).to(tl.int64)
    source = tl.load(sources + row) + first * tl.load(sources + row + 1)
    destination = tl.load(destinations + row) + second * tl.load(destinations + row + 1)
    size = tl.load(sources + row + 2) // (WORD.primitive_bitwidth // 8)
    size = tl.where((first >= 0) & (first < num_sources), size, 0)
    size = tl.where((second >= 1) & (second < num_destinations), size, 0)
    size = tl.multiple_of(size, ALIGNMENT // (WORD.primitive_bitwidth // 8))
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    source = tl.multiple_of(source.to(tl.pointer_type(WORD)), ALIGNMENT)
    destination = tl.multiple_of(destination.to(tl.pointer_type(WORD)), ALIGNMENT)
    words = tl.load(source + word, mask=word < size)
    tl.store(destination + word, words, mask=word < size)


@triton.jit
def _zero_kernel(
    pages, ids, num_blocks, WORD: tl.constexpr, ALIGNMENT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * 3
    block = tl.load(ids + tl.program_id(0)).to(tl.int64)
    start = tl.load(pages + row) + block * tl.load(pages + row + 1)
    size = tl.load(pages + row + 2) // (WORD.primitive_bitwidth // 8)
    size = tl.where((block >= 1) & (block < num_blocks), size, 0)
    size = tl.multiple_of(size, ALIGNMENT // (WORD.primitive_bitwidth // 8))
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    start = tl.multiple_of(start.to(tl.pointer_type(WORD)), ALIGNMENT)
    tl.store(start + word, tl.zeros((CHUNK,), WORD), mask=word < size)


_WORDS: Mapping[int, Any] = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a type: `float16` for torch.float16."""
    return str(dtype).removeprefix("torch.")


def tile_of(heads: int, size: int) -> tuple[int, int, int]:
    """Return tokens, heads and elements of a program, all powers of two, for vectors of `size`."""
    columns = triton.next_power_of_2(size)
    rows = max(1, TILE // columns)
    num_heads = min(rows, triton.next_power_of_2(heads))
    return rows // num_heads, num_heads, columns


def inverse_of(scale: float) -> float | None:
    """Return the factor that replaces a division exactly: for powers of two.

    A division takes as long as some ten products, and most caches are scaled by 1.
    """
    return 1 / scale if math.frexp(scale)[0] == 0.5 and scale <= 2.0**126 else None


def store_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> None:
    """Do `plain.store_tokens`."""
    num = slots.shape[0]
    if not num:
        return
    heads, size = tokens.shape[1:]
    tile = tile_of(heads, size)
    table = scales if scales is not None else part
    inverse = inverse_of(scale) if scales is None else None
    _store_kernel[triton.cdiv(num, tile[0]), triton.cdiv(heads, tile[1])](
        formats.bits(tokens), *tokens.stride()[:2],
        formats.bits(part), *part.stride()[:3],
        table if scales is not None else formats.bits(part), *table.stride()[:3],
        slots, num, part.shape[0] * part.shape[1], float(scale if inverse is None else inverse),
        part.shape[1], heads, size, formats.LARGEST.get(part.dtype, 1.0), *tile,
        name_of(tokens.dtype), name_of(part.dtype), scales is not None, inverse is not None,
        enable_fp_fusion=False,
    )  # fmt: skip


def load_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    slots: torch.Tensor,
    dtype: torch.dtype,
    scale: float,
) -> torch.Tensor:
    """Do `plain.load_tokens`."""
    heads, size = part.shape[2:]
    num = slots.shape[0]
    result = torch.empty((num, heads, size), dtype=dtype, device=part.device)
    if not num:
        return result
    tile = tile_of(heads, size)
    table = scales if scales is not None else part
    _load_kernel[triton.cdiv(num, tile[0]), triton.cdiv(heads, tile[1])](
        formats.bits(result),
        formats.bits(part), *part.stride()[:3],
        table if scales is not None else formats.bits(part), *table.stride()[:3],
        slots, num, part.shape[0] * part.shape[1], float(scale),
        part.shape[1], heads, size, *tile,
        name_of(part.dtype), name_of(dtype), scales is not None,
        enable_fp_fusion=False,
    )  # fmt: skip
    return result


def copy_pages(
    source: Segments, destination: Segments, read: torch.Tensor, written: torch.Tensor
) -> None:
    """Do `plain.copy_pages`, by tables of addresses."""
    if not read.shape[0]:
        return
    grid = (read.shape[0], source.table.shape[0], triton.cdiv(source.page_bytes, CHUNK_BYTES))
    word_bytes = min(source.word_bytes, destination.word_bytes)
    width = min(8, word_bytes)
    _copy_kernel[grid](
        source.table, destination.table, read, written, source.num_blocks, destination.num_blocks,
        _WORDS[width], word_bytes, CHUNK_BYTES // width, enable_fp_fusion=False,
    )  # fmt: skip


def zero_pages(segments: Segments, ids: torch.Tensor) -> None:
    """Do `plain.zero_pages`, by a table of addresses."""
    if not ids.shape[0]:
        return
    grid = (ids.shape[0], segments.table.shape[0], triton.cdiv(segments.page_bytes, CHUNK_BYTES))
    width = min(8, segments.word_bytes)
    _zero_kernel[grid](
        segments.table, ids, segments.num_blocks, _WORDS[width], segments.word_bytes,
        CHUNK_BYTES // width, enable_fp_fusion=False,
    )  # fmt: skip
