"""Prompts at random, in the forms that hashing and its tests take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import environ
from random import Random
from typing import Any

import torch

from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import RequestInput
from tests.contract.builders import make_config

EDGES = (0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1)
"""The first and last tokens of each width in CBOR."""

NONE_HASH = bytes(range(100, 132))


def random_prompts(random: Random, num: int, longest: int, *, top: int = 2**63) -> list[list[int]]:
    """Draw prompts with tokens of every width below `top`."""
    edges = [edge for edge in EDGES if edge < top]
    tops = [one for one in (24, 256, 65_536, 2**32, 2**63) if one < top]

    def token() -> int:
        return random.choice(edges) if random.random() < 0.4 else random.randrange(pick())

    def pick() -> int:
        return random.choice([*tops, top])

    return [[token() for _ in range(random.randint(1, longest))] for _ in range(num)]


def flat(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, list[int]]:
    starts = [0]
    for prompt in prompts:
        starts.append(starts[-1] + len(prompt))
    return torch.tensor([token for prompt in prompts for token in prompt]).long(), starts


def config_of(block_size: int, *, num_blocks: int = 12, **options: Any) -> ManagerConfig:
    config = make_config(num_blocks, block_size, max_model_len_tokens=4096, hash_seed=None)
    return replace(config, **options)


def host_hashes(
    implementation: Implementation, manager: KVCacheManager, prompts: Sequence[Sequence[int]]
) -> list[list[bytes]]:
    made = [implementation.make_request(manager, RequestInput("a", one)) for one in prompts]
    return [list(request.block_hashes) for request in made]


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Turn off overflow checks of Triton's interpreter, which take half of its time."""
    if environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton.runtime.interpreter import interpreter_builder

    before = interpreter_builder.options
    interpreter_builder.options = replace(before, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter_builder.options = before
