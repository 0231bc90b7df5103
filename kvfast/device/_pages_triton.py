"""Operations on pages as Triton kernels; `_pages_torch.py` says what they must do.

All memory is seen as integers of its width, so that formats are those of `_formats_triton.py`. One
program moves one token of one part, or up to CHUNK words of one page. Pages of all allocations are
moved by one launch: their addresses come from a table, int64 rows (address, stride, size) in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from kvfast.device import _formats
from kvfast.device._formats_triton import decode, encode

CHUNK_BYTES = 8192


@triton.jit
def _store_kernel(
    tokens, token_stride, head_stride,
    part, block_pitch, slot_pitch, head_pitch,
    scales, scale_block_pitch, scale_slot_pitch, scale_head_pitch,
    slots, num_slots, block_size, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, LIMIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    GIVEN: tl.constexpr, STORED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    # A number, not a truth: the interpreter can't mix one truth with many.
    heads = tl.where((slot >= block_size) & (slot < num_slots), HEADS, 0)
    block = slot // block_size
    offset = slot % block_size
    head = tl.arange(0, ROWS)
    element = tl.arange(0, COLUMNS)
    inside = (head < heads)[:, None] & (element < SIZE)[None, :]
    address = token * token_stride + head[:, None] * head_stride + element[None, :]
    words = tl.load(tokens + address, mask=inside, other=0)
    if GIVEN != STORED:
        values = decode(words, GIVEN)
        divisor = tl.full((ROWS,), scale, tl.float32)
        if SCALED:
            divisor = tl.math.div_rn(
                tl.max(tl.abs(values), axis=1), tl.full((ROWS,), LIMIT, tl.float32)
            )
            divisor = tl.where(divisor == 0.0, 1.0, divisor)
            place = block * scale_block_pitch + offset * scale_slot_pitch + head * scale_head_pitch
            tl.store(scales + place, divisor, mask=head < heads)
        wide = tl.broadcast_to(divisor[:, None], (ROWS, COLUMNS))
        words = encode(tl.math.div_rn(values, wide), STORED)
    place = block * block_pitch + offset * slot_pitch
    tl.store(part + place + head[:, None] * head_pitch + element[None, :], words, mask=inside)


@triton.jit
def _load_kernel(
    result,
    part, block_pitch, slot_pitch, head_pitch,
    scales, scale_block_pitch, scale_slot_pitch, scale_head_pitch,
    slots, num_slots, block_size, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STORED: tl.constexpr, WANTED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    # A number, not a truth: the interpreter can't mix one truth with many.
    heads = tl.where((slot >= block_size) & (slot < num_slots), HEADS, 0)
    block = slot // block_size
    offset = slot % block_size
    head = tl.arange(0, ROWS)
    element = tl.arange(0, COLUMNS)
    valid = (head < heads)[:, None] & (element < SIZE)[None, :]
    place = block * block_pitch + offset * slot_pitch
    address = place + head[:, None] * head_pitch + element[None, :]
    words = tl.load(part + address, mask=valid, other=0)
    if STORED != WANTED:
        factor = tl.full((ROWS,), scale, tl.float32)
        if SCALED:
            place = block * scale_block_pitch + offset * scale_slot_pitch + head * scale_head_pitch
            factor = tl.load(scales + place, mask=head < heads, other=0.0)
        words = encode(decode(words, STORED) * factor[:, None], WANTED)
        words = tl.where(valid, words, tl.zeros_like(words))
    address = token * (HEADS * SIZE) + head[:, None] * SIZE + element[None, :]
    tl.store(result + address, words, mask=(head < HEADS)[:, None] & (element < SIZE)[None, :])


@triton.jit
def _copy_kernel(
    sources, destinations, source_ids, destination_ids, num_sources, num_destinations,
    WORD: tl.constexpr, CHUNK: tl.constexpr,
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
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    words = tl.load(source.to(tl.pointer_type(WORD)) + word, mask=word < size)
    tl.store(destination.to(tl.pointer_type(WORD)) + word, words, mask=word < size)


@triton.jit
def _zero_kernel(
    pages, ids, num_blocks, WORD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * 3
    block = tl.load(ids + tl.program_id(0)).to(tl.int64)
    start = tl.load(pages + row) + block * tl.load(pages + row + 1)
    size = tl.load(pages + row + 2) // (WORD.primitive_bitwidth // 8)
    size = tl.where((block >= 1) & (block < num_blocks), size, 0)
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    zeros = tl.zeros((CHUNK,), WORD)
    tl.store(start.to(tl.pointer_type(WORD)) + word, zeros, mask=word < size)


_WORDS: Mapping[int, Any] = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


def name_of(dtype: torch.dtype) -> str:
    """`float16` for torch.float16."""
    return str(dtype).removeprefix("torch.")


def store_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> None:
    """As `_pages_torch.store_tokens`."""
    if not slots.shape[0]:
        return
    heads, size = tokens.shape[1:]
    table = scales if scales is not None else part
    _store_kernel[(slots.shape[0],)](
        _formats.bits(tokens), *tokens.stride()[:2],
        _formats.bits(part), *part.stride()[:3],
        table if scales is not None else _formats.bits(part), *table.stride()[:3],
        slots, part.shape[0] * part.shape[1], part.shape[1], float(scale),
        heads, size, _formats.LARGEST.get(part.dtype, 1.0),
        triton.next_power_of_2(heads), triton.next_power_of_2(size),
        name_of(tokens.dtype), name_of(part.dtype), scales is not None,
    )  # fmt: skip


def load_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    slots: torch.Tensor,
    dtype: torch.dtype,
    scale: float,
) -> torch.Tensor:
    """As `_pages_torch.load_tokens`."""
    heads, size = part.shape[2:]
    result = torch.empty((slots.shape[0], heads, size), dtype=dtype, device=part.device)
    if not slots.shape[0]:
        return result
    table = scales if scales is not None else part
    _load_kernel[(slots.shape[0],)](
        _formats.bits(result),
        _formats.bits(part), *part.stride()[:3],
        table if scales is not None else _formats.bits(part), *table.stride()[:3],
        slots, part.shape[0] * part.shape[1], part.shape[1], float(scale),
        heads, size,
        triton.next_power_of_2(heads), triton.next_power_of_2(size),
        name_of(part.dtype), name_of(dtype), scales is not None,
    )  # fmt: skip
    return result


def copy_pages(
    sources: torch.Tensor,
    destinations: torch.Tensor,
    source_ids: torch.Tensor,
    destination_ids: torch.Tensor,
    num_sources: int,
    num_destinations: int,
    page_bytes: int,
    word_bytes: int,
) -> None:
    """As `_pages_torch.copy_pages`, by tables of addresses.

    `page_bytes`: of the largest page; `word_bytes` divides all addresses, strides and sizes.
    """
    if not source_ids.shape[0]:
        return
    grid = (source_ids.shape[0], sources.shape[0], triton.cdiv(page_bytes, CHUNK_BYTES))
    _copy_kernel[grid](
        sources, destinations, source_ids, destination_ids, num_sources, num_destinations,
        _WORDS[word_bytes], CHUNK_BYTES // word_bytes,
    )  # fmt: skip


def zero_pages(
    pages: torch.Tensor, ids: torch.Tensor, num_blocks: int, page_bytes: int, word_bytes: int
) -> None:
    """As `_pages_torch.zero_pages`, by a table of addresses."""
    if not ids.shape[0]:
        return
    grid = (ids.shape[0], pages.shape[0], triton.cdiv(page_bytes, CHUNK_BYTES))
    _zero_kernel[grid](pages, ids, num_blocks, _WORDS[word_bytes], CHUNK_BYTES // word_bytes)
