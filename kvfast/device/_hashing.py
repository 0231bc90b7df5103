"""The two forms of hashing, by name."""

from __future__ import annotations

from importlib import import_module

import torch

from kvfast.device import _hashing_torch
from kvfast.device._backend import Backend
from kvfast.device._hashing_prompts import Prompts


def hash_words(prompts: Prompts, block_size_tokens: int, backend: Backend) -> torch.Tensor:
    """The hashes of all prompts, int32 [n, 8]: their bytes as words of this machine."""
    if backend == "torch":
        return _hashing_torch.block_hashes(prompts, block_size_tokens)
    # By name, since the module can't be imported without Triton.
    kernels = import_module("kvfast.device._hashing_triton")
    words: torch.Tensor = kernels.block_hashes(prompts, block_size_tokens)
    return words
