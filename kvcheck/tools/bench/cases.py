"""The cases to measure, and the plans made of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from kvcheck.tools.bench.script import Act, Script
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

    kind: ClassVar[str] = "prompt"
    num_requests: int
    prompt_tokens: int
    hit_percent: int
    num_blocks: int
    cold: bool = False

    @property
    def prompt_blocks(self) -> int:
        return self.prompt_tokens // BLOCK_SIZE_TOKENS

    @property
    def max_new_blocks(self) -> int:
        """Most blocks added by one part of a round, hits included."""
        return self.num_requests * self.prompt_blocks

    @property
    def hit_tokens(self) -> int:
        return self.prompt_blocks * self.hit_percent // 100 * BLOCK_SIZE_TOKENS

    @property
    def label(self) -> str:
        return (
            f"{self.num_requests} × {self.prompt_tokens} tokens, {self.hit_percent}% cached,"
            f" {self.num_blocks} blocks, {'cold' if self.cold else 'hot'}"
        )


@dataclass(frozen=True)
class DecodeCase:
    """Running requests that get one token each per step, until each has filled one more block.

    Their prompts are of `prompt_tokens` and up to 15 more, so that as many complete a block, and
    begin one, in each step.
    """

    kind: ClassVar[str] = "decode"
    num_requests: int
    prompt_tokens: int
    num_blocks: int

    @property
    def max_new_blocks(self) -> int:
        """Most blocks added by one part of a round: one each, or a prompt at first."""
        return max(self.num_requests, 1 + self.prompt_tokens // BLOCK_SIZE_TOKENS)

    def length_tokens(self, index: int) -> int:
        return self.prompt_tokens + index % BLOCK_SIZE_TOKENS

    @property
    def label(self) -> str:
        return f"{self.num_requests} running, from {self.prompt_tokens} tokens each"


@dataclass(frozen=True)
class ReplayCase:
    """A trace of requests, from the first to the last: see `kvcheck.tools.bench.script`."""

    kind: ClassVar[str] = "replay"
    trace: str
    script: Script = field(repr=False)

    @property
    def num_blocks(self) -> int:
        return self.script.options.num_blocks

    @property
    def prompt_tokens(self) -> int:
        """Most tokens that one request may hold."""
        return self.script.options.max_model_len_tokens

    @property
    def max_new_blocks(self) -> int:
        """Most blocks added by one step, hits included."""
        return self.script.max_new_blocks

    @property
    def label(self) -> str:
        return f"{self.trace}, {len(self.script.prompts)} requests"


Case = PromptCase | DecodeCase | ReplayCase


def case_facts(case: Case) -> dict[str, Any]:
    if not isinstance(case, ReplayCase):
        return {"kind": case.kind, **asdict(case)}
    script = case.script
    return {
        "kind": case.kind,
        "trace": case.trace,
        "num_requests": len(script.prompts),
        "options": asdict(script.options),
        "steps": len(script.steps),
        "admissions": script.count(Act.ADMIT),
        "refused_admissions": script.count(Act.ADMIT, granted=False),
        "preemptions": script.count(Act.PREEMPT),
        "allocations_of_running": script.count(Act.RUN),
        "generated_tokens": script.count(Act.APPEND),
    }


@dataclass(frozen=True)
class Plan:
    """The cases and how often each is measured; one further round before them is not counted.

    `pool_sizes`: of the pools that are made to see what they cost, in blocks.
    """

    cases: tuple[Case, ...]
    num_rounds: int
    pool_sizes: tuple[int, ...] = ()


class Section(StrEnum):
    """The parts that a plan may be reduced to."""

    PROMPTS = "prompts"
    POOLS = "pools"
    DECODE = "decode"
    MEMORY = "memory"
    REPLAY = "replay"


def full_plan(sections: Collection[Section] = tuple(Section)) -> Plan:
    """Plan prompts of 512 to 128k tokens, pools of 1k to 4M blocks, 1 to 4096 requests."""
    rounds = 9
    cases: dict[Section, tuple[Case, ...]] = {
        Section.PROMPTS: _prompts(((64, 512), (16, 8192), (1, 131072)), hits=(0, 50, 97)),
        Section.POOLS: _pools(*(4**power for power in range(5, 12))),
        Section.DECODE: tuple(_decode(running, rounds) for running in (1, 16, 256, 1024, 4096)),
    }
    return _plan(cases, sections, rounds, (2**16, 2**18, 2**20, 2**22))


def quick_plan(sections: Collection[Section] = tuple(Section)) -> Plan:
    """Return a small plan that takes seconds instead of minutes."""
    rounds = 5
    cases: dict[Section, tuple[Case, ...]] = {
        Section.PROMPTS: _prompts(((16, 512), (1, 8192)), hits=(0, 97)),
        Section.POOLS: _pools(1024, 8 * 1024),
        Section.DECODE: tuple(_decode(running, rounds) for running in (1, 64)),
    }
    return _plan(cases, sections, rounds, (2**14, 2**16))


def _plan(
    cases: Mapping[Section, tuple[Case, ...]],
    sections: Collection[Section],
    rounds: int,
    sizes: tuple[int, ...],
) -> Plan:
    chosen = tuple(case for section, each in cases.items() if section in sections for case in each)
    return Plan(chosen, rounds, sizes if Section.MEMORY in sections else ())


def pool_config(num_blocks: int, *, max_model_len_tokens: int) -> ManagerConfig:
    """Return one group of full attention, with a fixed seed: all managers have equal hashes."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE_TOKENS, num_kv_heads=8, head_size=128, dtype="bfloat16"
    )
    return ManagerConfig(
        KVCacheConfig(num_blocks, (KVCacheGroup(("layer.0",), spec),)),
        max_model_len_tokens=max_model_len_tokens,
        hash_function=HASH_FUNCTION,
        hash_seed="0",
    )


def config_of(case: Case) -> ManagerConfig:
    return pool_config(case.num_blocks, max_model_len_tokens=2 * case.prompt_tokens)


def _prompts(
    sizes: tuple[tuple[int, int], ...], *, hits: tuple[int, ...]
) -> tuple[PromptCase, ...]:
    """Make hot cases: the pool is twice what the prompts need, so that no hit is evicted."""
    return tuple(
        PromptCase(
            requests, tokens, percent, num_blocks=2 * requests * tokens // BLOCK_SIZE_TOKENS + 1
        )
        for requests, tokens in sizes
        for percent in hits
    )


def _pools(*sizes: int) -> tuple[PromptCase, ...]:
    """Return the same half-cached work in pools of growing size."""
    return tuple(PromptCase(4, 1024, 50, num_blocks=size, cold=True) for size in sizes)


def _decode(running: int, rounds: int) -> DecodeCase:
    prompt_tokens = 512
    blocks = running * (prompt_tokens // BLOCK_SIZE_TOKENS + rounds + 2)
    return DecodeCase(running, prompt_tokens, num_blocks=blocks + 1)
