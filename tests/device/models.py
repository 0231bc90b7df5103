"""Small caches of every kind, random prompts, and streams that copy late."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import environ
from random import Random
from typing import Any

import torch

from kvfast.device import KVPools, Layout
from kvfast.device.tier.streams import Event
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import RequestInput
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from tests.contract.builders import make_config

BLOCK_SIZE = 4
DEVICE = os.environ.get("KVSPEC_TEST_DEVICE", "cpu")
"""Where pools and tables of these tests lie; cuda on a machine that has one."""


def full(dtype: str = "float16", kv_quant_mode: str = "NONE") -> FullAttentionSpec:
    """Return a spec of two heads of size 6 and values of size 3: unequal, no powers of two."""
    return FullAttentionSpec(BLOCK_SIZE, 2, 6, dtype, kv_quant_mode, head_size_v=3)


def mla(dtype: str = "bfloat16") -> MLAAttentionSpec:
    return MLAAttentionSpec(BLOCK_SIZE, 1, 9, dtype)


def mamba() -> MambaSpec:
    """Return states of 12 and 20 bytes, padded to a page of float16 full attention."""
    return MambaSpec(
        BLOCK_SIZE, ((2, 3), (5,)), ("float16", "float32"), page_size_padded=4 * 2 * 9 * 2
    )


def window() -> SlidingWindowSpec:
    return SlidingWindowSpec(BLOCK_SIZE, 2, 6, "float16", sliding_window=6, head_size_v=3)


def cache(*specs: LayerSpec, num_blocks: int = 7, layers: int = 2) -> KVCacheConfig:
    """Configure a group of `layers` layers per spec: layer `g.i` is layer i of group g."""
    groups = (
        KVCacheGroup(tuple(f"{number}.{layer}" for layer in range(layers)), spec)
        for number, spec in enumerate(specs)
    )
    return KVCacheConfig(num_blocks, tuple(groups))


def filled(
    config: KVCacheConfig, seed: int = 0, layout: Layout = "NHD", device: str = DEVICE
) -> KVPools:
    pools = KVPools(config, layout=layout, device=device)
    generator = torch.Generator().manual_seed(seed)
    for pages in pools.pages:
        noise = torch.randint(0, 256, pages.shape, dtype=torch.uint8, generator=generator)
        pages[1:] = noise[1:].to(pages.device)
    return pools


def contents(pools: KVPools) -> list[bytes]:
    return [pages.cpu().numpy().tobytes() for pages in pools.pages]


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


class LateEvent:
    """A copy that is not made until it, or a later one, is waited for."""

    def __init__(self, streams: LateStreams, work: Callable[[], None]) -> None:
        self.streams, self.work = streams, work
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        while not self.is_done:
            first = self.streams.queue.popleft()
            first.work()
            first.is_done = True


class LateStreams:
    """Copies one after another; what computes is done at once, as it is in host memory."""

    def __init__(self) -> None:
        self.queue = deque[LateEvent]()
        self.num_started = self.num_waits = 0

    def start(self, work: Callable[[], None], used: Iterable[torch.Tensor]) -> LateEvent:
        event = LateEvent(self, work)
        self.queue.append(event)
        self.num_started += 1
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, LateEvent)
        self.num_waits += not event.is_done
        event.synchronize()
