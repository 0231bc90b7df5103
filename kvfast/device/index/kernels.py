"""The operations of `plain` as kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvfast.device.hashing.prompts import Prompts
from kvfast.device.hashing.sha256 import DIGEST_WORDS
from kvfast.device.index.table import EMPTY, IndexTable

_LANES = 128
_EMPTY = tl.constexpr(EMPTY)
_WORDS = tl.constexpr(DIGEST_WORDS)


@triton.jit
def _insert(hashes, slots, first, end, slot_mask, BLOCK: tl.constexpr):
    entry = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_entry = entry < end
    slot = tl.load(hashes + entry.to(tl.int64) * _WORDS, mask=is_entry, other=0) & slot_mask
    entry = tl.where(is_entry, entry, _EMPTY)
    while tl.min(entry) < _EMPTY:
        # The slot keeps the lesser one; the other, if there is one, moves on.
        before = tl.atomic_min(slots + slot, entry, mask=entry < _EMPTY, sem="relaxed")
        entry = tl.where(entry < _EMPTY, tl.maximum(entry, before), _EMPTY)
        slot = (slot + 1) & slot_mask


@triton.jit
def _is_found(hashes, is_live, slots, wanted, is_wanted, slot_mask):
    """Return whether the hash at `wanted` is that of a live entry, for each lane."""
    slot = tl.load(wanted, mask=is_wanted, other=0) & slot_mask
    found = slot < 0
    searching = is_wanted
    while tl.max(searching.to(tl.int32)) > 0:
        entry = tl.load(slots + slot, mask=searching, other=_EMPTY)
        searching = searching & (entry != _EMPTY)
        is_same = searching
        for i in tl.static_range(_WORDS):
            there = tl.load(hashes + entry.to(tl.int64) * _WORDS + i, mask=is_same, other=0)
            mine = tl.load(wanted + i, mask=is_same, other=0)
            is_same = is_same & (there == mine)
        live = tl.load(is_live + entry, mask=is_same, other=0)
        found = found | (live != 0)
        searching = searching & (is_same == 0)
        slot = (slot + 1) & slot_mask
    return found


@triton.jit
def _lookup(
    hashes, is_live, slots, prompt_hashes, first_hash, num_blocks, hits, slot_mask, num_dropped,
    span_tokens, BLOCK: tl.constexpr,
):  # fmt: skip
    prompt = tl.program_id(0)
    count = tl.load(num_blocks + prompt)
    first = tl.load(first_hash + prompt)
    lane = tl.arange(0, BLOCK)
    run = count * 0
    limit = count
    while run < limit:
        block = run + lane
        is_block = block < count
        wanted = prompt_hashes + (first + block) * _WORDS
        found = _is_found(hashes, is_live, slots, wanted, is_block, slot_mask)
        num = tl.min(tl.where(found, BLOCK, lane))
        run += num
        limit = tl.where(num < BLOCK, run, count)
    hit = tl.maximum(run - num_dropped, 0) * span_tokens
    tl.store(hits + prompt, hit.to(tl.int32))


def insert(table: IndexTable, first: int, end: int) -> None:
    """Do `plain.insert`, a lane per entry; the order of the lanes does not change the result."""
    if first < end:
        _insert[(triton.cdiv(end - first, _LANES),)](
            table.hashes, table.slots, first, end, table.slot_mask, _LANES, enable_fp_fusion=False
        )


def lookup(
    table: IndexTable, prompts: Prompts, hashes: torch.Tensor, num_dropped: int, span_tokens: int
) -> torch.Tensor:
    """Look up as `plain.lookup` does, with a program per prompt that ends at the first miss."""
    _, first_hash, counts = prompts.columns
    hits = torch.empty(len(prompts), dtype=torch.int32, device=hashes.device)
    if len(prompts):
        _lookup[(len(prompts),)](
            table.hashes, table.is_live, table.slots, hashes, first_hash, counts, hits,
            table.slot_mask, num_dropped, span_tokens, _LANES, enable_fp_fusion=False,
        )  # fmt: skip
    return hits
