"""What programs and engines drew, counted: which options, how large, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, get_args

from kvcheck.play import steps as st
from kvcheck.play.steps import Program
from kvspec.config import ManagerConfig
from kvspec.inside import hits_end_inside, leaves_states_inside
from kvspec.specs import SPEC_TYPES, UniformTypeKVCacheSpecs
from tests.lockstep.choices import OTHERS, functions

LONG_TOKENS = 16_000
MANY_BLOCKS = 32
MANY_REQUESTS = 200


def _default(member: Field[Any]) -> Any:
    """Return the default of a member; MISSING without one."""
    return member.default if member.default_factory is MISSING else member.default_factory()


def _optional(cls: Any) -> list[str]:
    return [member.name for member in fields(cls) if _default(member) is not MISSING]


def _other(value: Any) -> list[str]:
    """Return the members of a dataclass that are not as they are by default."""
    usual = {member.name: _default(member) for member in fields(value)}
    return [name for name in _optional(value) if getattr(value, name) != usual[name]]


def _sizes(config: ManagerConfig) -> set[int]:
    return {spec.block_size for spec in config.managed_specs}


TOGGLES = ("enable_events", "log_stats", "residency_sample_rate")
"""Members of a configuration that are left as they are now and then, too: `usual log_stats`."""
OF_SPECS = ("extra_retained_tokens", "num_speculative_blocks", "mamba_cache_mode")
LARGE: Mapping[str, Callable[[ManagerConfig], object]] = MappingProxyType(
    {
        "hits inside a block": hits_end_inside,
        "states inside chunks": lambda config: (
            hits_end_inside(config) and any(s.has_checkpoints for s in config.managed_specs)
        ),
        "states inside chunks, no finer hashes": leaves_states_inside,
        "given hashes": lambda config: config.given_hash_bytes,
        "blocks of 256 tokens": lambda config: 256 in _sizes(config),
        "pool of 100,000 blocks": lambda config: config.kv_cache.num_blocks >= 100_000,
    }
)
"""Of configurations: production sizes, and what a subject makes or `chosen` draws."""
OF_LARGE = {"hash_block_size_tokens", "policy", "xxhash_cbor"}
"""What no small configuration has otherwise than usual."""
OF_CONFIG: Mapping[str, Callable[[ManagerConfig], object]] = MappingProxyType(
    {
        "retention": lambda config: config.retention_interval_tokens,
        "three groups": lambda config: len(config.managed_specs) >= 3,
        "blocks of 1 token": lambda config: 1 in _sizes(config),
        "blocks of unequal sizes": lambda config: len(_sizes(config)) > 1,
        "pool of 40 blocks or fewer": lambda config: config.kv_cache.num_blocks <= 40,
        "another hash seed": lambda config: config.hash_seed != "0",
    }
)

PAIRS = (
    ("use_eagle", "SlidingWindowSpec"), ("use_eagle", "MambaSpec"), ("use_eagle", "three groups"),
    ("use_eagle", "retention"), ("use_eagle", "watermark"),
    ("use_eagle", "blocks of unequal sizes"), ("retention", "MambaSpec"),
    ("retention", "SlidingWindowSpec"), ("retention", "watermark"),
    ("dcp_world_size", "hash_lookahead_tokens"), ("dcp_world_size", "watermark"),
    ("enable_caching", "SlidingWindowSpec"), ("enable_caching", "MambaSpec"),
    ("enable_caching", "watermark"), ("usual enable_events", "SlidingWindowSpec"),
    ("usual enable_events", "MambaSpec"), ("usual enable_events", "usual log_stats"),
    ("residency_sample_rate", "SlidingWindowSpec"),
    ("residency_sample_rate", "usual enable_events"), ("usual log_stats", "three groups"),
    ("hash_lookahead_tokens", "three groups"), ("CircularBufferSpec", "SlidingWindowSpec"),
    ("extra_retained_tokens", "three groups"), ("blocks of unequal sizes", "MambaSpec"),
    ("SlidingWindowSpec", "MambaSpec"),
)  # fmt: skip
"""Options that engines set together, each otherwise than usual: `enable_caching` is off."""

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


OF_STEP: Mapping[str, Callable[[Any], object]] = MappingProxyType(
    {
        "prompt of 16,000 tokens": lambda step: len(getattr(step, "prompt", ())) >= LONG_TOKENS,
        "eviction of 32 blocks": lambda s: isinstance(s, st.Evict) and s.count >= MANY_BLOCKS,
        "preemption in a step": lambda step: st.PREEMPTED in getattr(step, "parts", ()),
        "end in a step": lambda step: st.ENDS in getattr(step, "parts", ()),
        "no room for rows": lambda step: isinstance(step, st.Batch) and not step.rows,
        "no mappings": lambda step: isinstance(step, st.Batch) and step.more_slots is None,
    }
)

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


def _configured(config: ManagerConfig) -> Iterator[str]:
    """Yield the options of a configuration: members that are set, kinds of groups, conditions."""
    other = _other(config)
    yield from other
    yield from (f"usual {name}" for name in TOGGLES if name not in other)
    for spec in config.managed_specs:
        yield type(spec).__name__
        yield from (name for name in _other(spec) if name in OF_SPECS)
    yield config.hash_function
    yield from (f"choice of {n}" for n, c in OTHERS.items() if getattr(config.policy, n) == c)
    conditions = {**OF_CONFIG, **LARGE, **BOUNDARIES}.items()
    yield from (name for name, holds in conditions if holds(config))


NEVER = {"Run.encoder_tokens", "EvictIds", "EvictIds.blocks", "pcp_world_size", "registry"}
"""Of other programs: a running request has its encoder's blocks, explorations evict by id, whole
requests are split over ranks by an engine, and code is no option."""


def _every_option() -> Iterator[str]:
    """Yield the options of small configurations."""
    yield from _optional(ManagerConfig)
    yield from (f"usual {name}" for name in TOGGLES)
    yield from (each.__name__ for each in SPEC_TYPES if each is not UniformTypeKVCacheSpecs)
    yield from (*OF_SPECS, *OF_CONFIG, *functions(), *map(" + ".join, PAIRS), *BOUNDARIES)


def _every_step() -> Iterator[str]:
    for cls in get_args(st.Step):
        yield cls.__name__
        yield from (f"{cls.__name__}.{name}" for name in _optional(cls))
    yield from OF_STEP


class Tally:
    """Operations and their options. `largest`: the largest of each size that was drawn.

    Options of a configuration are counted once for each operation under it.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.block_sizes: set[int] = set()
        self.num_operations = 0

    def add_program(self, program: Program, num_operations: int = 1) -> None:
        """Count a program of so many operations."""
        self.num_operations += num_operations
        config = program.config
        has = set(_configured(config))
        has |= {name for name, holds in OF_PROGRAM.items() if holds(program)}
        has |= {" + ".join(pair) for pair in PAIRS if has.issuperset(pair)}
        self.counts.update(dict.fromkeys(has, num_operations))
        self.block_sizes |= _sizes(config)
        self._reach("pool", config.kv_cache.num_blocks)
        self._reach("requests", _num_requests(program))
        for step in program.steps:
            cls = type(step).__name__
            self.counts.update([cls, *(f"{cls}.{name}" for name in _other(step))])
            self.counts.update(name for name, holds in OF_STEP.items() if holds(step))
            self._reach("prompt", len(getattr(step, "prompt", ())))

    def _reach(self, name: str, size: int) -> None:
        self.largest[name] = max(self.largest[name], size)

    def never_drawn(self) -> list[str]:
        """Return the options, pairs and boundaries that no program had."""
        chosen = (f"choice of {name}" for name in OTHERS)
        names = (*_every_option(), *LARGE, *chosen, *_every_step(), *OF_PROGRAM)
        return [name for name in names if not self.counts[name] and name not in NEVER]

    def never_drawn_small(self) -> list[str]:
        """Return those of small configurations that no program had."""
        left_out = {*NEVER, *OF_LARGE}
        return [name for name in _every_option() if not self.counts[name] and name not in left_out]

    def lines(self) -> list[str]:
        """Return the counts in words."""
        sizes = ", ".join(map(str, sorted(self.block_sizes)))
        largest = ", ".join(f"{name} {size:,}" for name, size in sorted(self.largest.items()))
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        return [
            f"{self.num_operations:,} operations: {counts}",
            f"largest: {largest}; blocks of {sizes} tokens",
            f"never drawn: {', '.join(self.never_drawn()) or 'nothing'}",
        ]
