"""Block hashes of many prompts in plain torch, which the kernels beside it must match.

One block of every prompt after another, since each hash enters the next. A block's message is the
CBOR of [parent, tokens, null] (KV-HASH-2), padded as SHA-256 wants it:

    0         3       35                            length              end of a chunk
    83 58 20  parent  head of the array · tokens · f6 · 80 · 00 … 00 · length in bits
"""

from __future__ import annotations

import torch

from kvfast.device.hashing.prompts import Prompts
from kvfast.device.hashing.sha256 import (
    CHUNK_BYTES,
    CHUNK_WORDS,
    DIGEST_BYTES,
    DIGEST_WORDS,
    INITIAL_STATE,
    ROUND_CONSTANTS,
)

PARENT = 3
"""The place of the parent."""
ARRAY = PARENT + DIGEST_BYTES
"""The start of the head of the array of tokens."""
LARGEST_HEAD_BYTES = 9
MASK = 0xFFFFFFFF


def max_chunks(block_size_tokens: int) -> int:
    """Return the chunks of a block's longest message: every token takes 9 bytes."""
    longest = ARRAY + LARGEST_HEAD_BYTES * block_size_tokens + 5 + 1 + 9
    return -(-longest // CHUNK_BYTES)


def block_hashes(prompts: Prompts, block_size_tokens: int) -> torch.Tensor:
    """Return the hashes of all prompts, int32 [num_hashes, 8]: their bytes as machine words."""
    start, first_hash, counts = prompts.columns
    device = start.device
    # One row more, for blocks that a prompt lacks.
    words = torch.zeros((prompts.num_hashes + 1, DIGEST_WORDS), dtype=torch.int64, device=device)
    parent = prompts.root.expand(len(prompts), DIGEST_WORDS)
    offsets = torch.arange(block_size_tokens, device=device)
    for block in range(int(prompts.counts.max()) if len(prompts) else 0):
        is_block = block < counts
        first = torch.where(is_block, start + block * block_size_tokens, 0)
        tokens = prompts.tokens[first[:, None] + offsets].long()
        message, num_chunks = messages(tokens, parent)
        parent = sha256(message, num_chunks)
        words[torch.where(is_block, first_hash + block, prompts.num_hashes)] = parent
    as_bytes = bytes_of(words[: prompts.num_hashes])
    return as_bytes.view(torch.int32)


def messages(tokens: torch.Tensor, parent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded messages, words [P, W] as int64, and how many chunks of each count [P].

    `tokens`: int64 [P, h], `parent`: words [P, 8].
    """
    num, block_size = tokens.shape
    device = tokens.device
    array = torch.full((num, 1), block_size, device=device)
    values = torch.cat((array, tokens), 1)
    # An argument up to 23 is part of the first byte. Negative ones have all 64 bits.
    width = (values > 23).long() + (values > 255) + 2 * (values > 65535) + 4 * (values > MASK)
    width = torch.where(values < 0, 8, width)
    wide = 24 + (width > 1).long() + (width > 2) + (width > 4)
    first = torch.where(width > 0, wide, values)
    first[:, 0] |= 4 << 5  # an array; tokens are major type 0
    end = (1 + width).cumsum(1)
    at = ARRAY + end - 1 - width
    length = ARRAY + end[:, -1:] + 1
    num_chunks = (length + 9 + CHUNK_BYTES - 1) // CHUNK_BYTES
    # One byte more, for what a shorter head does not have.
    size = max_chunks(block_size) * CHUNK_BYTES
    out = torch.zeros((num, size + 1), dtype=torch.int64, device=device)
    out[:, :PARENT] = torch.tensor([0x83, 0x58, DIGEST_BYTES], device=device)
    out[:, PARENT:ARRAY] = bytes_of(parent)
    out.scatter_(1, at, first)
    for i in range(8):  # bytes of the argument, the last one first
        place = torch.where(i < width, at + width - i, size)
        out.scatter_(1, place, (values >> (8 * i)) & 255)
    out.scatter_(1, length - 1, 0xF6)
    out.scatter_(1, length, 0x80)
    for i in range(8):
        out.scatter_(1, num_chunks * CHUNK_BYTES - 1 - i, (8 * length >> (8 * i)) & 255)
    return words_of(out[:, :size]), num_chunks[:, 0]


def words_of(octets: torch.Tensor) -> torch.Tensor:
    """Convert bytes [P, 4 W] to big-endian words [P, W]."""
    a, b, c, d = octets.unflatten(1, (-1, 4)).unbind(-1)
    return (a << 24) | (b << 16) | (c << 8) | d


def bytes_of(words: torch.Tensor) -> torch.Tensor:
    """Convert words [P, W] to bytes [P, 4 W], uint8, most significant first."""
    shifts = torch.tensor([24, 16, 8, 0], device=words.device)
    return ((words[:, :, None] >> shifts) & 255).to(torch.uint8).flatten(1)


def sha256(message: torch.Tensor, num_chunks: torch.Tensor) -> torch.Tensor:
    """Return digests [P, 8] of padded messages [P, W], of which `num_chunks` chunks count."""
    state = torch.tensor(INITIAL_STATE, device=message.device).expand(len(message), -1)
    for chunk in range(message.shape[1] // CHUNK_WORDS):
        words = message[:, chunk * CHUNK_WORDS : (chunk + 1) * CHUNK_WORDS]
        after = (state + _rounds(state, words)) & MASK
        state = torch.where((chunk < num_chunks)[:, None], after, state)
    return state


def _rounds(state: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Do the 64 rounds over one chunk."""
    schedule = list(words.unbind(1))
    a, b, c, d, e, f, g, h = state.unbind(1)
    for number, constant in enumerate(ROUND_CONSTANTS):
        if number >= CHUNK_WORDS:
            early, late = schedule[number - 15], schedule[number - 2]
            mixed = _turned(early, 7) ^ _turned(early, 18) ^ (early >> 3)
            mixed = mixed + (_turned(late, 17) ^ _turned(late, 19) ^ (late >> 10))
            schedule.append((schedule[number - 16] + schedule[number - 7] + mixed) & MASK)
        chosen = (e & f) ^ (~e & g)
        new = h + chosen + constant + schedule[number]
        new = new + (_turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25))
        majority = (a & b) ^ (a & c) ^ (b & c)
        second = majority + (_turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22))
        a, b, c, d, e, f, g, h = (new + second) & MASK, a, b, c, (d + new) & MASK, e, f, g
    return torch.stack((a, b, c, d, e, f, g, h), 1)


def _turned(word: torch.Tensor, bits: int) -> torch.Tensor:
    """Rotate a 32-bit word to the right."""
    return ((word >> bits) | (word << (32 - bits))) & MASK
