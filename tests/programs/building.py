"""What stories are built from: small configurations, prompts, and caches with holes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from kvcheck.play.steps import Evict, Step
from kvspec.config import ManagerConfig
from kvspec.specs import LayerSpec, SlidingWindowMLASpec
from tests.programs.single import configure


def flagged(config: ManagerConfig, *numbers: int) -> ManagerConfig:
    """The configuration with these groups flagged as eagle groups."""
    groups = tuple(
        replace(group, is_eagle_group=number in numbers)
        for number, group in enumerate(config.kv_cache.groups)
    )
    return replace(config, kv_cache=replace(config.kv_cache, groups=groups))


def roomy(*specs: LayerSpec, **options: Any) -> ManagerConfig:
    """A pool in which nothing is ever short."""
    return configure(120, *specs, **options)


def prompt(num_tokens: int) -> tuple[int, ...]:
    """Tokens 1, 2, 3 …: longer prompts begin with shorter ones."""
    return tuple(range(1, num_tokens + 1))


def only(group: int, kept: Collection[int], num_blocks: int) -> tuple[Step, ...]:
    """Evict all of the first request's blocks in this group but those at these places."""
    return tuple(
        Evict(group=group, index=index) for index in range(num_blocks) if index not in kept
    )


def latent_window(tokens: int, block_size: int = 2) -> SlidingWindowMLASpec:
    """A small sliding window over latents."""
    return SlidingWindowMLASpec(block_size, 1, 8, "float16", sliding_window=tokens)
