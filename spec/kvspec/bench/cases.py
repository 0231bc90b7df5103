"""What is measured: cases, and the plans made of them."""

from __future__ import annotations

from dataclasses import dataclass

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec

BLOCK_SIZE_TOKENS = 16
HASH_FUNCTION = "sha256_cbor"


@dataclass(frozen=True)
class PromptCase:
    """Prompts that arrive together, are looked up, allocated and freed.

    `hit_percent`: how much of each prompt is cached, in whole blocks, rounded down. `cold`: the
    pool is full of other cached prompts, laid out and released in random order, and each round asks
    for prompts that no recent round asked for. Otherwise the same blocks are used in every round.
    """

    num_requests: int
    prompt_tokens: int
    hit_percent: int
    num_blocks: int
    cold: bool = False

    @property
    def prompt_blocks(self) -> int:
        """Blocks of one prompt."""
        return self.prompt_tokens // BLOCK_SIZE_TOKENS

    @property
    def hit_tokens(self) -> int:
        """Tokens of each prompt that are cached."""
        return self.prompt_blocks * self.hit_percent // 100 * BLOCK_SIZE_TOKENS

    @property
    def label(self) -> str:
        """The case in words."""
        return (
            f"{self.num_requests} × {self.prompt_tokens} tokens, {self.hit_percent}% cached,"
            f" {self.num_blocks} blocks, {'cold' if self.cold else 'hot'}"
        )


@dataclass(frozen=True)
class DecodeCase:
    """Running requests that get one token each per step, until each has filled one more block."""

    num_requests: int
    prompt_tokens: int
    num_blocks: int

    @property
    def label(self) -> str:
        """The case in words."""
        return f"{self.num_requests} running, {self.prompt_tokens} tokens each at first"


Case = PromptCase | DecodeCase


@dataclass(frozen=True)
class Plan:
    """The cases and how often each is measured; one further round before them is not counted."""

    cases: tuple[Case, ...]
    num_rounds: int


def full_plan() -> Plan:
    """Prompts of 512 to 128k tokens, pools of 1k to 1M blocks, 1 to 1024 running requests."""
    rounds = 9
    return Plan(
        (
            *_prompts(((64, 512), (16, 8192), (1, 131072)), hits=(0, 50, 97)),
            *_pools(1024, 16 * 1024, 128 * 1024, 1024 * 1024),
            *(_decode(running, rounds) for running in (1, 16, 256, 1024)),
        ),
        rounds,
    )


def quick_plan() -> Plan:
    """A small part of it, for seconds instead of minutes."""
    rounds = 5
    return Plan(
        (
            *_prompts(((16, 512), (1, 8192)), hits=(0, 97)),
            *_pools(1024, 8 * 1024),
            *(_decode(running, rounds) for running in (1, 64)),
        ),
        rounds,
    )


def config_of(case: Case) -> ManagerConfig:
    """One group of full attention; a fixed seed, so that all managers have the same hashes."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE_TOKENS, num_kv_heads=8, head_size=128, dtype="bfloat16"
    )
    return ManagerConfig(
        KVCacheConfig(case.num_blocks, (KVCacheGroup(("layer.0",), spec),)),
        max_model_len_tokens=2 * case.prompt_tokens,
        hash_function=HASH_FUNCTION,
        hash_seed="0",
    )


def _prompts(
    sizes: tuple[tuple[int, int], ...], *, hits: tuple[int, ...]
) -> tuple[PromptCase, ...]:
    """Hot: a pool of twice what the prompts need, so that what is to hit is not evicted."""
    return tuple(
        PromptCase(
            requests, tokens, percent, num_blocks=2 * requests * tokens // BLOCK_SIZE_TOKENS + 1
        )
        for requests, tokens in sizes
        for percent in hits
    )


def _pools(*sizes: int) -> tuple[PromptCase, ...]:
    """The same work in pools of growing size, half of it cached."""
    return tuple(PromptCase(4, 1024, 50, num_blocks=size, cold=True) for size in sizes)


def _decode(running: int, rounds: int) -> DecodeCase:
    prompt_tokens = 512
    blocks = running * (prompt_tokens // BLOCK_SIZE_TOKENS + rounds + 2)
    return DecodeCase(running, prompt_tokens, num_blocks=blocks + 1)
