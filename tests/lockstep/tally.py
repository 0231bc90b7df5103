"""What programs and engines drew, counted: which options, how large, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeGuard

from kvcheck.play import steps as st
from kvcheck.play.steps import Program
from kvspec._check import COUNT_MAX
from kvspec.config import ManagerConfig
from kvspec.inside import hits_end_inside, leaves_states_inside
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)
from tests.lockstep.choices import OTHERS, functions

LONG_TOKENS = 16_000
MANY_BLOCKS = 32
MANY_REQUESTS = 200


def _has(*kinds: type) -> Callable[[ManagerConfig], bool]:
    return lambda config: any(isinstance(spec, kinds) for spec in config.managed_specs)


def _sizes(config: ManagerConfig) -> set[int]:
    return {spec.block_size for spec in config.managed_specs}


def _hashed_by(name: str) -> Callable[[ManagerConfig], bool]:
    return lambda config: config.hash_function == name


def _chosen(name: str) -> Callable[[ManagerConfig], bool]:
    return lambda config: getattr(config.policy, name) == OTHERS[name]


def _is_batch(step: st.Step) -> TypeGuard[st.Batch]:
    return isinstance(step, st.Batch)


def _given(name: str) -> Callable[[st.Step], bool]:
    return lambda step: bool(getattr(step, name, None))


OF_CONFIG: Mapping[str, Callable[[ManagerConfig], object]] = MappingProxyType(
    {
        "events on": lambda config: config.enable_events,
        "events off": lambda config: not config.enable_events,
        "statistics on": lambda config: config.log_stats,
        "statistics off": lambda config: not config.log_stats,
        "residency on": lambda config: config.residency_sample_rate,
        "residency off": lambda config: not config.residency_sample_rate,
        "caching off": lambda config: not config.enable_caching,
        "eagle": lambda config: config.use_eagle,
        "retention": lambda config: config.retention_interval_tokens,
        "hash look-ahead": lambda config: config.hash_lookahead_tokens,
        "hits inside a block": hits_end_inside,
        "states inside chunks": lambda config: (
            hits_end_inside(config) and any(s.has_checkpoints for s in config.managed_specs)
        ),
        "states inside chunks, no finer hashes": leaves_states_inside,
        "watermark": lambda config: config.watermark,
        "context parallelism": lambda config: config.dcp_world_size > 1,
        "full attention": _has(FullAttentionSpec),
        "sliding window": _has(SlidingWindowSpec),
        "chunked attention": _has(ChunkedLocalAttentionSpec),
        "Mamba": _has(MambaSpec),
        "cross attention": _has(CrossAttentionSpec),
        "circular buffer": _has(CircularBufferSpec),
        "R-SWA": _has(RSWASpec),
        "retained tokens": lambda config: any(
            s.extra_retained_tokens for s in config.managed_specs
        ),
        "sink": _has(SinkFullAttentionSpec),
        "given hashes": lambda config: config.given_hash_bytes,
        "three groups": lambda config: len(config.managed_specs) >= 3,
        "blocks of 1 token": lambda config: 1 in _sizes(config),
        "blocks of 256 tokens": lambda config: 256 in _sizes(config),
        "blocks of unequal sizes": lambda config: len(_sizes(config)) > 1,
        "pool of 40 blocks or fewer": lambda config: config.kv_cache.num_blocks <= 40,
        "pool of 100,000 blocks": lambda config: config.kv_cache.num_blocks >= 100_000,
        "another hash seed": lambda config: config.hash_seed != "0",
        "given scheduler block size": lambda config: config.scheduler_block_size_tokens,
        **{name: _hashed_by(name) for name in functions()},
        **{f"choice of {name}": _chosen(name) for name in OTHERS},
    }
)
"""Of a configuration; counted once for each operation under it."""

OF_LARGE = frozenset(
    {
        "blocks of 256 tokens", "pool of 100,000 blocks", "given hashes", "xxhash_cbor",
        "hits inside a block", "states inside chunks", "states inside chunks, no finer hashes",
        *(f"choice of {name}" for name in OTHERS),
    }
)  # fmt: skip
"""Of configurations: production sizes, and choices that a subject makes or `chosen` draws."""

PAIRS = (
    ("eagle", "sliding window"), ("eagle", "Mamba"), ("eagle", "three groups"),
    ("eagle", "retention"), ("eagle", "watermark"), ("eagle", "blocks of unequal sizes"),
    ("retention", "Mamba"), ("retention", "sliding window"), ("retention", "watermark"),
    ("context parallelism", "hash look-ahead"), ("context parallelism", "watermark"),
    ("caching off", "sliding window"), ("caching off", "Mamba"), ("caching off", "watermark"),
    ("events off", "sliding window"), ("events off", "Mamba"), ("events off", "statistics off"),
    ("residency on", "sliding window"), ("residency on", "events off"),
    ("statistics off", "three groups"), ("hash look-ahead", "three groups"),
    ("circular buffer", "sliding window"), ("retained tokens", "three groups"),
    ("blocks of unequal sizes", "Mamba"), ("sliding window", "Mamba"),
)  # fmt: skip
"""Options that engines set together."""

BOUNDARIES: Mapping[str, Callable[[ManagerConfig], object]] = MappingProxyType(
    {
        "window of 1 token": lambda config: 1 in _windows(config, 0),
        "window of whole blocks": lambda config: 0 in _windows(config, 0, in_blocks=True),
        "window of a token more": lambda config: 0 in _windows(config, -1, in_blocks=True),
        "chunk of 1 block": lambda config: any(
            s.chunk_tokens and s.chunk_tokens == s.block_size for s in config.managed_specs
        ),
        "step shorter than a block": lambda config: (
            0 < (config.max_num_batched_tokens or 0) <= max(_sizes(config), default=0)
        ),
        "pool that one request fills": lambda config: (
            config.kv_cache.num_blocks - 1
            < sum(-(-config.max_model_len_tokens // s.block_size) for s in config.managed_specs)
        ),
    }
)
"""Values at which a formula changes: runs of blocks, chunks, and pools."""


def _windows(config: ManagerConfig, more: int, *, in_blocks: bool = False) -> set[int]:
    """Return the lengths of windows and `more`; `in_blocks`: what is left of whole blocks."""
    specs = [spec for spec in config.managed_specs if spec.window_tokens]
    return {
        (spec.window_tokens + more) % spec.block_size if in_blocks else spec.window_tokens + more
        for spec in specs
        if not in_blocks or spec.block_size > 1
    }


OF_STEP: Mapping[str, Callable[[st.Step], object]] = MappingProxyType(
    {
        "prompt of 16,000 tokens": lambda s: isinstance(s, st.Arrive) and _is_long(s.prompt),
        "salt": _given("salt"),
        "adapter": _given("lora"),
        "items": _given("items"),
        "embeddings": _given("embedded"),
        "external load": _given("external_tokens"),
        "load that comes later": _given("load_later"),
        "failed load": lambda step: isinstance(step, st.FailLoad),
        "withdrawal": lambda step: isinstance(step, st.Withdraw),
        "drafts": _given("drafts"),
        "tokens in flight": _given("in_flight_tokens"),
        "look-ahead": _given("lookahead_tokens"),
        "blocks in reserve": _given("reserved_blocks"),
        "all must fit": _given("must_fit"),
        "preemption": lambda step: isinstance(step, st.Release) and step.again,
        "end": lambda step: isinstance(step, st.Release) and not step.again,
        "eviction of 32 blocks": lambda s: isinstance(s, st.Evict) and s.count >= MANY_BLOCKS,
        "boundary inside a block": lambda step: isinstance(step, st.CachePartial),
        "blocks that are held": lambda step: isinstance(step, st.Hold),
        "tokens taken back": lambda step: isinstance(step, st.Retell) and step.fewer,
        "reset": lambda step: isinstance(step, st.Reset),
        "illegal call": lambda step: isinstance(step, st.Break),
        "call that may be illegal": lambda step: isinstance(step, st.Try),
        "copy": lambda step: isinstance(step, st.Copy),
        "saved to a file": _given("saved"),
        "told again together": _given("together"),
        "reported hits": _given("reports_hits"),
        "whole step": _is_batch,
        "illegal plans": _given("breaks"),
        "call of one kind": _given("by"),
        "preemption in a step": lambda s: _is_batch(s) and st.PREEMPTED in s.parts,
        "end in a step": lambda s: _is_batch(s) and st.ENDS in s.parts,
        "drafts in a step": lambda s: _is_batch(s) and s.drafts,
        "stop at a refusal": _given("stops_at_refusal"),
        "step that starts none": lambda s: _is_batch(s) and not s.starts_step,
        "token budget": lambda s: _is_batch(s) and s.token_budget < COUNT_MAX,
        "no room for rows": lambda s: _is_batch(s) and not s.rows,
        "no mappings": lambda s: _is_batch(s) and s.more_slots is None,
        "rows taken": lambda step: isinstance(step, st.TakeDeltas),
        "look-ups of several": lambda step: isinstance(step, st.LookUps),
    }
)
"""Of a step."""

OF_PROGRAM: Mapping[str, Callable[[Program], object]] = MappingProxyType(
    {
        "200 requests": lambda program: _num_requests(program) >= MANY_REQUESTS,
        "blocks held while residency is sampled": lambda program: (
            program.config.residency_sample_rate
            and any(isinstance(step, st.Hold) for step in program.steps)
        ),
    }
)
"""Of a program as a whole."""


def _num_requests(program: Program) -> int:
    return sum(isinstance(step, st.Arrive) for step in program.steps)


def _is_long(prompt: tuple[int, ...]) -> bool:
    return len(prompt) >= LONG_TOKENS


class Tally:
    """Operations and their options. `largest`: the largest of each size that was drawn."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.block_sizes: set[int] = set()
        self.num_operations = 0

    def add_program(self, program: Program, num_operations: int = 1) -> None:
        """Count a program of so many operations."""
        self.num_operations += num_operations
        config = program.config
        has = {name for name, holds in {**OF_CONFIG, **BOUNDARIES}.items() if holds(config)}
        has |= {name for name, holds in OF_PROGRAM.items() if holds(program)}
        self.counts.update(dict.fromkeys(has, num_operations))
        pairs = [" + ".join(pair) for pair in PAIRS if has.issuperset(pair)]
        self.counts.update(dict.fromkeys(pairs, num_operations))
        self.block_sizes |= _sizes(config)
        self._reach("pool", config.kv_cache.num_blocks)
        self._reach("requests", _num_requests(program))
        for step in program.steps:
            self.counts.update(name for name, holds in OF_STEP.items() if holds(step))
            self._reach("prompt", len(getattr(step, "prompt", ())))

    def _reach(self, name: str, size: int) -> None:
        self.largest[name] = max(self.largest[name], size)

    def never_drawn(self) -> list[str]:
        """Return the options, pairs and boundaries that no program had."""
        names = (*OF_CONFIG, *OF_STEP, *OF_PROGRAM, *map(" + ".join, PAIRS), *BOUNDARIES)
        return [name for name in names if not self.counts[name]]

    def never_drawn_small(self) -> list[str]:
        """Return those of small configurations that no program had."""
        names = [name for name in OF_CONFIG if name not in OF_LARGE]
        names += [*map(" + ".join, PAIRS), *BOUNDARIES]
        return [name for name in names if not self.counts[name]]

    def lines(self) -> list[str]:
        """Return the counts in words."""
        sizes = ", ".join(map(str, sorted(self.block_sizes)))
        largest = ", ".join(f"{name} {size:,}" for name, size in sorted(self.largest.items()))
        return [
            f"{self.num_operations:,} operations: {_shares(self.counts)}",
            f"largest: {largest}; blocks of {sizes} tokens",
            f"never drawn: {', '.join(self.never_drawn()) or 'nothing'}",
        ]


def _shares(counts: Counter[str]) -> str:
    """Each option with how often it was there, those of configurations first."""
    names = [*OF_CONFIG, *sorted(set(counts) - set(OF_CONFIG))]
    return ", ".join(f"{name} {counts[name]:,}" for name in names if counts[name])
