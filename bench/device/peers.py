"""Other projects' kernels that write keys and values into pages, where they are installed.

FlashInfer's `append_paged_kv_cache` and vLLM's `reshape_and_cache_flash`, as documented there: the
same tokens to the same slots of the same pools. One that leaves other bits is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import torch


@dataclass(frozen=True)
class Tokens:
    """The data to write: tokens in slots that fill block after block, and the pages of a layer.

    `keys`, `values`: [n, heads, size]. `slots`: int64 [n]. `key_pages`, `value_pages`: [blocks,
    block size, heads, size].
    """

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        size: int = self.key_pages.shape[1]
        return size

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the content of the slots."""
        place = self.slots // self.block_size, self.slots % self.block_size
        return self.key_pages[place], self.value_pages[place]


class WrongPeerError(Exception):
    """A peer wrote other bytes than it should have."""


Write = Callable[[], object]
Peer = Callable[[Tokens, ModuleType], Write]


def flashinfer(tokens: Tokens, module: ModuleType) -> Write:
    """Write as one request: its pages in order, and the place of each token in it."""
    size, num = tokens.block_size, len(tokens.slots)
    device = tokens.slots.device
    pages = (tokens.slots[::size] // size).int()
    request = torch.zeros(num, dtype=torch.int32, device=device)
    places = torch.arange(num, dtype=torch.int32, device=device)
    bounds = torch.tensor([0, len(pages)], dtype=torch.int32, device=device)
    last = torch.tensor([(num - 1) % size + 1], dtype=torch.int32, device=device)
    cache = (tokens.key_pages, tokens.value_pages)

    def write() -> None:
        module.append_paged_kv_cache(
            tokens.keys, tokens.values, request, places, cache, pages, bounds, last, "NHD"
        )

    return write


def vllm(tokens: Tokens, module: ModuleType) -> Write:
    """Write by slots, without scales."""
    one = torch.ones((), dtype=torch.float32, device=tokens.slots.device)

    def write() -> None:
        module.reshape_and_cache_flash(
            tokens.keys, tokens.values, tokens.key_pages, tokens.value_pages,
            tokens.slots, "auto", one, one,
        )  # fmt: skip

    return write


PEERS: dict[str, tuple[str, Peer]] = {
    "FlashInfer": ("flashinfer", flashinfer),
    "vLLM": ("vllm._custom_ops", vllm),
}
"""Name → the module that is imported, and how it is called."""


def writers(tokens: Tokens) -> Iterator[tuple[str, Write]]:
    """Yield the installed peers, each after one trial. Raises WrongPeerError."""
    for name, (module, peer) in PEERS.items():
        try:
            found = import_module(module)
        except ImportError:
            continue
        write = peer(tokens, found)
        for pages in (tokens.key_pages, tokens.value_pages):
            pages.zero_()
        write()
        keys, values = tokens.read()
        if not torch.equal(keys, tokens.keys) or not torch.equal(values, tokens.values):
            raise WrongPeerError(f"{name} wrote other keys or values than were given")
        yield name, write
