"""Prompts one after another, as the kernels of hashing take them, and what is checked of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvfast.device.base.arguments import host_ints
from kvfast.device.base.backend import Backend, form_of
from kvfast.device.base.memory import on_device
from kvfast.device.hashing.sha256 import DIGEST_BYTES, DIGEST_WORDS, ROUND_CONSTANTS
from kvspec.batched import Ints
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError

TOKENS = "a one-dimensional int32 or int64 tensor"
MAX_BLOCK_SIZE_TOKENS = 65_536


@dataclass(frozen=True)
class Prompts:
    """The blocks to hash of each prompt: its first ones, as many as `counts` says.

    - `tokens`: int32 or int64, of all prompts, on the device.
    - `counts`, `first_hash`: int64 [P] and [P + 1] in host memory: blocks of each, and the sum of
      those before it.
    - `table`: int64 on the device: where each prompt's tokens begin, its first hash, its blocks
      [3, P], then the first parent as 8 big-endian words, and the round constants of SHA-256.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    first_hash: torch.Tensor
    table: torch.Tensor

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_hashes(self) -> int:
        """Number of hashes of all prompts."""
        return int(self.first_hash[-1])

    @property
    def columns(self) -> torch.Tensor:
        """Three columns of the table, one row per prompt."""
        return self.table[: 3 * len(self)].view(3, len(self))

    @property
    def root(self) -> torch.Tensor:
        """Parent of every prompt's first block hash."""
        return self.table[3 * len(self) :][:DIGEST_WORDS]

    @property
    def round_constants(self) -> torch.Tensor:
        """The 64 round constants of SHA-256."""
        return self.table[3 * len(self) + DIGEST_WORDS :]


def check_tokens(
    field: str, tokens: torch.Tensor, device: torch.device | None = None
) -> torch.Tensor:
    """Check token ids: one dimension, contiguous, in host memory or on the device, if given.

    Those in host memory are at least 0.
    """
    if not isinstance(tokens, torch.Tensor):
        raise InvalidArgumentError(field, tokens, TOKENS)
    is_plain = tokens.layout == torch.strided and tokens.dim() == 1
    if not is_plain or tokens.dtype not in (torch.int32, torch.int64) or tokens.is_meta:
        shown = f"{tokens.dtype} {list(tokens.shape)}, {tokens.layout}, on {tokens.device}"
        raise InvalidArgumentError(field, shown, TOKENS)
    if tokens.device.type != "cpu" and device not in (None, tokens.device):
        raise InvalidArgumentError(field, str(tokens.device), f"on {device} or in host memory")
    if tokens.device.type == "cpu" and len(tokens) and int(tokens.min()) < 0:
        place = int((tokens < 0).nonzero()[0])
        raise InvalidArgumentError(f"{field}[{place}]", int(tokens[place]), "at least 0")
    return tokens.contiguous()


def check_starts(field: str, starts: Ints, num_tokens: int) -> torch.Tensor:
    """Check int64 [P + 1] in host memory: from 0 to the number of tokens, no prompt empty."""
    found = host_ints(field, starts)
    if not len(found):
        raise InvalidArgumentError(field, len(found), "one more than there are prompts")
    if int(found[0]):
        raise InvalidArgumentError(f"{field}[0]", int(found[0]), "0")
    # Not by differences, which might not be numbers of 64 bits.
    is_empty = found[1:] <= found[:-1]
    if is_empty.any():
        place = int(is_empty.nonzero()[0]) + 1
        allowed = f"more than {int(found[place - 1])}: a prompt has a token"
        raise InvalidArgumentError(f"{field}[{place}]", int(found[place]), allowed)
    if int(found[-1]) != num_tokens:
        last = f"{field}[{len(found) - 1}]"
        raise InvalidArgumentError(last, int(found[-1]), f"{num_tokens}, as there are tokens")
    return found


def check_block_size(field: str, block_size_tokens: int) -> None:
    """Check the tokens per hash."""
    if not is_int(block_size_tokens) or not 1 <= block_size_tokens <= MAX_BLOCK_SIZE_TOKENS:
        allowed = f"an int in 1 … {MAX_BLOCK_SIZE_TOKENS}"
        raise InvalidArgumentError(field, block_size_tokens, allowed)


def check_none_hash(field: str, none_hash: bytes) -> None:
    """Check a first parent of SHA-256."""
    if not isinstance(none_hash, bytes) or len(none_hash) != DIGEST_BYTES:
        raise InvalidArgumentError(field, none_hash, f"{DIGEST_BYTES} bytes")


def prompts_on(
    device: torch.device,
    tokens: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    none_hash: bytes,
) -> Prompts:
    """Put checked prompts on a device; `counts`: blocks to hash of each."""
    first_hash = torch.zeros(len(starts), dtype=torch.int64)
    torch.cumsum(counts, 0, out=first_hash[1:])
    words = [int.from_bytes(none_hash[i : i + 4], "big") for i in range(0, DIGEST_BYTES, 4)]
    numbers = torch.tensor([*words, *ROUND_CONSTANTS])
    table = torch.cat((starts[:-1], first_hash[:-1], counts, numbers))
    return Prompts(on_device(tokens, device), counts, first_hash, on_device(table, device))


def hash_words(prompts: Prompts, block_size_tokens: int, backend: Backend) -> torch.Tensor:
    """Return the hashes of all prompts, int32 [n, 8]: their bytes as machine words."""
    words: torch.Tensor = form_of(__package__, backend).block_hashes(prompts, block_size_tokens)
    return words
