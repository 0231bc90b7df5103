"""Block hashes of many prompts at once, on a device (KV-DEV-18).

The blocks of one prompt are a chain, those of different prompts are not: on a device thousands of
chains grow side by side. Nothing waits for the device.

    tokens = torch.tensor([*first_prompt, *second_prompt])
    found = hash_blocks(tokens, [0, 100, 250], block_size_tokens=16, none_hash=manager.none_hash)
    found.hashes[found.starts[1] : found.starts[2]]  # of the second prompt
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvfast.device.base.arguments import check_device
from kvfast.device.base.backend import Backend, chosen
from kvfast.device.hashing.prompts import (
    check_block_size,
    check_none_hash,
    check_starts,
    check_tokens,
    hash_words,
    prompts_on,
)
from kvspec.batched import Ints


@dataclass(frozen=True)
class BlockHashes:
    """The hashes of the full blocks of some prompts, prompt after prompt.

    - `hashes`: uint8 [n, 32] on the device, row by row the bytes of `Request.block_hashes`.
    - `starts`: int64 [P + 1] in host memory: those of prompt p are rows starts[p] … starts[p + 1] -
      1.
    """

    hashes: torch.Tensor
    starts: torch.Tensor


def hash_blocks(
    tokens: torch.Tensor,
    starts: Ints,
    *,
    block_size_tokens: int,
    none_hash: bytes,
    device: torch.device | str | None = None,
    backend: Backend | None = None,
) -> BlockHashes:
    """Return the sha256_cbor hashes of all full blocks of prompts without extra keys (KV-DEV-18).

    - `tokens`: int32 or int64, all prompts one after another, on the device or in host memory.
    - `starts`: P + 1 ints, where each prompt begins in `tokens`, and the end of the last one.
    - `block_size_tokens`: tokens per hash, 1 … 65,536: `hash_block_size_tokens` of the manager's
      configuration. `none_hash`: that of the manager, 32 bytes.
    - `device`: None for that of `tokens`. `backend`: None (Triton on CUDA devices, else torch),
      "torch" or "triton".

    InvalidArgumentError, before anything runs, for what the host can see. A negative token in
    device memory gives hashes that no request has, from its block on.
    """
    place = None if device is None else check_device("device", device)
    given = check_tokens("tokens", tokens, place)
    place = given.device if place is None else place
    form = chosen(backend, place)
    found = check_starts("starts", starts, len(given))
    check_block_size("block_size_tokens", block_size_tokens)
    check_none_hash("none_hash", none_hash)
    counts = found.diff() // block_size_tokens
    prompts = prompts_on(place, given, found, counts, none_hash)
    words = hash_words(prompts, block_size_tokens, form)
    return BlockHashes(words.view(torch.uint8), prompts.first_hash)
