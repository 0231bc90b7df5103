"""The block hashes of `plain` as two kernels.

`_messages` writes the messages of many blocks at once, all but the parents; `_chain` hashes them, a
lane per prompt, block after block. A message lies in words, those of one number side by side for
all prompts, so that the lanes of `_chain` read side by side:

    message[block, word, prompt], the bytes of a word in the order of this machine

Long prompts go by slices of blocks, so that messages take no more than SCRATCH_BYTES.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvfast.device.hashing.plain import ARRAY, max_chunks
from kvfast.device.hashing.prompts import Prompts
from kvfast.device.hashing.sha256 import CHUNK_BYTES, CHUNK_WORDS, DIGEST_WORDS, INITIAL_STATE

SCRATCH_BYTES = 64 << 20
_LANES = 32
_MAX_SLICE = 65_535
"""Blocks of a slice: the second axis of a grid ends there on CUDA devices."""
_ARRAY = tl.constexpr(ARRAY)
_CHUNK_BYTES = tl.constexpr(CHUNK_BYTES)
_CHUNK_WORDS = tl.constexpr(CHUNK_WORDS)
_DIGEST_WORDS = tl.constexpr(DIGEST_WORDS)
_INITIAL_STATE = tl.constexpr(INITIAL_STATE)


@triton.jit
def _put(row, word_bytes, at, byte, mask):
    """Store byte `at` of a message; bytes are reversed within its words."""
    place = (at // 4) * word_bytes + 3 - at % 4
    tl.store(row + place, byte.to(tl.uint8), mask=mask)


@triton.jit
def _put_head(row, word_bytes, at, MAJOR: tl.constexpr, value, mask):
    """Write a major type and its argument in the fewest bytes; returns the place after them."""
    is_wide = (value > 23) | (value < 0)
    width = is_wide.to(tl.int32) + ((value >> 8) != 0) + 2 * ((value >> 16) != 0)
    width += 4 * ((value >> 32) != 0)
    power = (width > 1).to(tl.int32) + (width > 2) + (width > 4)
    first = tl.where(is_wide, 24 + power, value)
    _put(row, word_bytes, at, MAJOR * 32 + first, mask)
    for i in tl.static_range(8):
        _put(row, word_bytes, at + width - i, value >> (8 * i), mask & (i < width))
    return at + 1 + width


@triton.jit
def _messages(
    tokens, token_start, num_blocks, message, num_chunks, first_block, block_size, num_prompts,
    num_words, BLOCK: tl.constexpr,
):  # fmt: skip
    prompt = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slice_block = tl.program_id(1).to(tl.int64)
    block = first_block + slice_block
    count = tl.load(num_blocks + prompt, mask=prompt < num_prompts, other=0)
    is_block = block < count
    first = tl.load(token_start + prompt, mask=is_block, other=0) + block * block_size
    word_bytes = tl.zeros([BLOCK], tl.int64) + num_prompts * 4
    row = message + (slice_block * num_words * word_bytes + prompt * 4)

    array = tl.zeros([BLOCK], tl.int64) + block_size
    at = _put_head(row, word_bytes, tl.full([BLOCK], _ARRAY, tl.int32), 4, array, is_block)
    for i in range(0, block_size):
        token = tl.load(tokens + first + i, mask=is_block, other=0).to(tl.int64)
        at = _put_head(row, word_bytes, at, 0, token, is_block)
    _put(row, word_bytes, at, tl.full([BLOCK], 0xF6, tl.int32), is_block)  # null: no extra keys
    _put(row, word_bytes, at + 1, tl.full([BLOCK], 0x80, tl.int32), is_block)
    length_bits = (at + 1) * 8
    chunks = (at + 1 + 9 + _CHUNK_BYTES - 1) // _CHUNK_BYTES
    for i in tl.static_range(4):  # of 8; a message is shorter than 2^32 bits
        _put(row, word_bytes, chunks * _CHUNK_BYTES - 1 - i, length_bits >> (8 * i), is_block)
    tl.store(num_chunks + slice_block * num_prompts + prompt, chunks, mask=is_block)


@triton.jit
def _sum(word, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Rotate the word to the right by each of three numbers of bits, and combine."""
    rotated = ((word >> A) | (word << (32 - A))) ^ ((word >> B) | (word << (32 - B)))
    return rotated ^ ((word >> C) | (word << (32 - C)))


@triton.jit
def _mixed(word, A: tl.constexpr, B: tl.constexpr, SHIFT: tl.constexpr):
    """Combine the word rotated by two numbers of bits, and shifted."""
    rotated = ((word >> A) | (word << (32 - A))) ^ ((word >> B) | (word << (32 - B)))
    return rotated ^ (word >> SHIFT)


@triton.jit
def _next_words(words):
    """Compute the next 16 words of the schedule."""
    for _ in tl.static_range(_CHUNK_WORDS):
        word = words[0] + words[9] + _mixed(words[1], 7, 18, 3) + _mixed(words[14], 17, 19, 10)
        words = words[1:] + (word,)
    return words


@triton.jit
def _compressed(state, words, round_constants):
    """Compute the state after one chunk: four times 16 rounds, since 64 take long to compile."""
    after = state
    for sixteen in range(0, 4):
        a, b, c, d, e, f, g, h = after
        for i in tl.static_range(_CHUNK_WORDS):
            constant = tl.load(round_constants + sixteen * _CHUNK_WORDS + i).to(tl.uint32)
            new = h + _sum(e, 6, 11, 25) + (g ^ (e & (f ^ g))) + words[i] + constant
            second = _sum(a, 2, 13, 22) + ((a & b) | (c & (a | b)))
            h = g
            g = f
            f = e
            e = d + new
            d = c
            c = b
            b = a
            a = new + second
        after = (a, b, c, d, e, f, g, h)
        words = _next_words(words)  # the last time for nothing
    added = ()
    for i in tl.static_range(_DIGEST_WORDS):
        added = added + (state[i] + after[i],)
    return added


@triton.jit
def _swapped(word):
    """Reverse the bytes of a word."""
    return (word << 24) | ((word & 0xFF00) << 8) | ((word >> 8) & 0xFF00) | (word >> 24)


@triton.jit
def _load_words(message, row, row_words, parent, is_first, mask):
    """Load 16 words of a chunk, and put the parent into the first chunk."""
    words = ()
    for i in tl.static_range(_CHUNK_WORDS):
        word = tl.load(message + row + i * row_words, mask=mask, other=0)
        word = word.to(tl.uint32, bitcast=True)
        # 83 58 20, then the parent, whose bytes start three after the beginning of a word.
        if i == 0:
            word = tl.where(is_first, word | 0x83582000 | (parent[0] >> 24), word)
        elif i < _DIGEST_WORDS:
            word = tl.where(is_first, word | (parent[i - 1] << 8) | (parent[i] >> 24), word)
        elif i == _DIGEST_WORDS:
            word = tl.where(is_first, word | (parent[i - 1] << 8), word)
        words = words + (word,)
    return words


@triton.jit
def _load_parent(root, hashes, hash_before, is_root, is_prompt):
    """Load the first parent, or the hash before."""
    parent = ()
    for i in tl.static_range(_DIGEST_WORDS):
        at_root = tl.load(root + i).to(tl.uint32)
        at = hashes + hash_before * _DIGEST_WORDS + i
        before = tl.load(at, mask=is_prompt & (not is_root), other=0)
        before = _swapped(before.to(tl.uint32, bitcast=True))
        parent = parent + (tl.where(is_root, at_root, before),)
    return parent


@triton.jit
def _initial_state(lanes):
    state = ()
    for i in tl.static_range(_DIGEST_WORDS):
        state = state + (tl.full(lanes.shape, _INITIAL_STATE[i], tl.uint32),)
    return state


@triton.jit
def _chosen(condition, one, other):
    chosen = ()
    for i in tl.static_range(_DIGEST_WORDS):
        chosen = chosen + (tl.where(condition, one[i], other[i]),)
    return chosen


@triton.jit
def _chain(
    message, num_chunks, first_hash, num_blocks, root, round_constants, hashes, first_block,
    num_slice_blocks, num_prompts, num_words, BLOCK: tl.constexpr,
):  # fmt: skip
    prompt = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(num_blocks + prompt, mask=prompt < num_prompts, other=0) - first_block
    own = tl.load(first_hash + prompt, mask=prompt < num_prompts, other=0) + first_block
    parent = _load_parent(root, hashes, own - 1, first_block == 0, count > 0)
    num = tl.minimum(tl.max(count), num_slice_blocks)
    row_words = tl.zeros([BLOCK], tl.int64) + num_prompts
    for block in range(0, num):
        is_block = block < count
        chunks = tl.load(num_chunks + block * row_words + prompt, mask=is_block, other=0)
        base = block * num_words * row_words + prompt
        state = _initial_state(prompt)
        for chunk in range(0, tl.max(chunks)):
            is_chunk = chunk < chunks
            row = base + chunk * _CHUNK_WORDS * row_words
            words = _load_words(message, row, row_words, parent, chunk == 0, is_chunk)
            after = _compressed(state, words, round_constants)
            state = _chosen(is_chunk, after, state)
        for i in tl.static_range(_DIGEST_WORDS):
            at = hashes + (own + block) * _DIGEST_WORDS + i
            tl.store(at, _swapped(state[i]).to(tl.int32, bitcast=True), mask=is_block)
        parent = state


def block_hashes(prompts: Prompts, block_size_tokens: int) -> torch.Tensor:
    """Hash as `plain.block_hashes` does, with both kernels once for each slice."""
    device = prompts.table.device
    hashes = torch.empty((prompts.num_hashes, DIGEST_WORDS), dtype=torch.int32, device=device)
    num_words = max_chunks(block_size_tokens) * CHUNK_WORDS
    messages_at_once = max(1, SCRATCH_BYTES // (4 * num_words))
    for begin in range(0, len(prompts), messages_at_once):
        end = min(len(prompts), begin + messages_at_once)
        _hash_some(prompts, begin, end, block_size_tokens, num_words, hashes)
    return hashes


def _hash_some(
    prompts: Prompts, begin: int, end: int, block_size_tokens: int, num_words: int,
    hashes: torch.Tensor,
) -> None:  # fmt: skip
    """Compute the hashes of prompts `begin` … `end - 1`."""
    token_start, first_hash, num_blocks = prompts.columns[:, begin:end]
    num, longest = end - begin, int(prompts.counts[begin:end].max())
    if not longest:
        return
    slice_blocks = min(longest, _MAX_SLICE, max(1, SCRATCH_BYTES // (4 * num_words * num)))
    device = hashes.device
    message = torch.empty((slice_blocks, num_words, num), dtype=torch.int32, device=device)
    num_chunks = torch.empty((slice_blocks, num), dtype=torch.int32, device=device)
    lanes = triton.cdiv(num, _LANES)
    for first_block in range(0, longest, slice_blocks):
        num_slice = min(slice_blocks, longest - first_block)
        message.zero_()
        _messages[(lanes, num_slice)](
            prompts.tokens, token_start, num_blocks, message.view(torch.uint8), num_chunks,
            first_block, block_size_tokens, num, num_words, _LANES, num_warps=1,
            enable_fp_fusion=False,
        )  # fmt: skip
        _chain[(lanes,)](
            message,
            num_chunks,
            first_hash,
            num_blocks,
            prompts.root,
            prompts.round_constants,
            hashes,
            first_block,
            num_slice,
            num,
            num_words,
            _LANES,
            num_warps=1,
            enable_fp_fusion=False,
            sanitize_overflow=False,  # words of SHA-256 wrap around
        )
