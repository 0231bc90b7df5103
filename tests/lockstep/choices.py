"""Draw options that were added after the first rules, per configuration or per request.

Single choices of policy, hashes of every function and seed, the alignment of hits, tokens in
flight, and requests whose hits are reported. They are drawn apart from programs and engines, so
that those stay as they are.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from math import lcm
from random import Random
from types import MappingProxyType
from typing import Any

from kvcheck.play import steps as st
from kvcheck.play.random_configs import OTHER_ORDERS
from kvcheck.play.steps import Program
from kvspec.config import HASH_FUNCTIONS, ManagerConfig
from kvspec.inside import hits_end_inside, leaves_states_inside
from kvspec.policy import Policy
from kvspec.specs import SPEC_TYPES, ChunkedLocalAttentionSpec, UniformTypeKVCacheSpecs
from tests.lockstep.drawing import production_program

OTHERS: Mapping[str, object] = MappingProxyType(
    {
        "unhashed_freed_to": "back",
        "removed_event_per": "last_copy",
        "extra_keys": "plain",
        "none_hash_without_seed": "fixed",
        "zeroed_blocks": "mixed_formats",
        "lookups_counted": "asked",
        "caching_beyond_tokens": "cut",
        "hits_reported": "asked",
    }
    | {
        field.name: not field.default
        for field in fields(Policy)
        if isinstance(field.default, bool) and field.name != "exact_block_ids"
    }
)
"""The non-default value of each choice; without ids nothing is equal.
The retention that programs name is no longer a choice."""

IN_FLIGHT_TOKENS = (0, 0, 1, 2, 5, 16, 33, 70)
REPORTING = 0.5
SEEDS = ("0", "", "another seed", "ß")
CHOICES_AT_ONCE = 3
DISTANCE = 7
"""Step between choices made together: after as many configurations each was made."""


def functions() -> list[str]:
    has_xxhash = importlib.util.find_spec("xxhash") is not None
    return [name for name in HASH_FUNCTIONS if name != "xxhash_cbor" or has_xxhash]


def with_policy(config: ManagerConfig, names: Iterable[str]) -> ManagerConfig:
    policy: dict[str, Any] = {name: OTHERS[name] for name in names}
    return replace(config, policy=replace(config.policy, **policy))


def with_unaligned_chunks(config: ManagerConfig, random: Random) -> ManagerConfig:
    """Let chunks begin inside blocks (KV-CHUNK-7); random draws elsewhere stay as they are."""
    groups = [
        replace(group, spec=replace(spec, attention_chunk_size=spec.attention_chunk_size + more))
        if isinstance(spec := group.spec, ChunkedLocalAttentionSpec)
        and (more := random.randrange(spec.block_size))
        else group
        for group in config.kv_cache.groups
    ]
    return replace(config, kv_cache=replace(config.kv_cache, groups=tuple(groups)))


def chosen(config: ManagerConfig, number: int, random: Random) -> ManagerConfig:
    """Apply some choices in turn; where a seed is left out, hashes begin with a fixed one."""
    every = list(OTHERS)
    names = [every[(number + d * DISTANCE) % len(every)] for d in range(CHOICES_AT_ONCE)]
    function = config.hash_function if config.given_hash_bytes else random.choice(functions())
    seed: str | None = random.choice(SEEDS)
    if "none_hash_without_seed" in names and function.startswith("sha256"):
        seed = None
    if "chunk_must_align" in names:
        config = with_unaligned_chunks(config, random)
    sizes = [spec.block_size for spec in config.managed_specs]
    aligned = lcm(*sizes) * config.dcp_world_size * config.pcp_world_size  # KV-CFG-4
    return replace(
        with_policy(config, names),
        hash_function=function,
        trusted_tenants=True,
        hash_seed=seed,
        scheduler_block_size_tokens=random.choice((None, aligned)) if sizes else None,
        eviction_order=Random(number).choice(("lru", *OTHER_ORDERS)),
    )


def in_flight(program: Program, random: Random) -> Program:
    """Give running requests tokens in flight (KV-MGR-21)."""
    steps = tuple(
        replace(step, in_flight_tokens=random.choice(IN_FLIGHT_TOKENS))
        if isinstance(step, st.Run)
        else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def reporting(program: Program, random: Random) -> Program:
    """Report the hits of some requests if events are on (KV-EVT-11)."""
    if not program.config.enable_events:
        return program
    steps = tuple(
        replace(step, reports_hits=random.random() < REPORTING)
        if isinstance(step, st.Arrive)
        else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def prioritised(program: Program, random: Random) -> Program:
    """Give requests priorities where those order eviction (KV-ORD-2)."""
    if program.config.eviction_order != "priority":
        return program
    steps = tuple(
        replace(step, priority=random.randrange(3)) if isinstance(step, st.Arrive) else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def under_choices(programs: Iterable[Program], random: Random) -> Iterator[Program]:
    for number, program in enumerate(programs):
        config = chosen(program.config, number, random)
        told = in_flight(replace(program, config=config), random)
        yield prioritised(reporting(told, Random(number)), Random(number))


def chosen_programs(seed: int, max_steps: int) -> Iterator[Program]:
    """Yield programs of production sizes under such choices, without end."""
    random = Random(seed)
    programs = (production_program(random, max_steps) for _ in itertools.count())
    return under_choices(programs, Random(seed))


def _default(member: Field[Any]) -> Any:
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


def _configured(config: ManagerConfig) -> Iterator[str]:
    """Yield the options of a configuration: members that are set, kinds of groups, conditions."""
    other = _other(config)
    yield from other
    yield from (f"usual {name}" for name in TOGGLES if name not in other)
    for spec in config.managed_specs:
        yield type(spec).__name__
        yield from (name for name in _other(spec) if name in OF_SPECS)
    yield config.hash_function
    yield f"order {config.eviction_order}"
    yield from (f"choice of {n}" for n, c in OTHERS.items() if getattr(config.policy, n) == c)
    yield from (name for name, holds in {**OF_CONFIG, **LARGE}.items() if holds(config))


NEVER = {"Run.encoder_tokens", "EvictIds", "EvictIds.blocks", "pcp_world_size", "registry"}
"""Of other programs: a running request has its encoder's blocks, explorations evict by id, whole
requests are split over ranks by an engine, and code is no option."""


def _every_option() -> Iterator[str]:
    yield from _optional(ManagerConfig)
    yield from (f"usual {name}" for name in TOGGLES)
    yield from (each.__name__ for each in SPEC_TYPES if each is not UniformTypeKVCacheSpecs)
    yield from (*OF_SPECS, *OF_CONFIG, *functions(), "order lru")
    yield from (f"order {name}" for name in OTHER_ORDERS)


def _every_step() -> Iterator[str]:
    for cls in st.Step.__subclasses__():
        yield cls.__name__
        yield from (f"{cls.__name__}.{name}" for name in _optional(cls))


class Tally:
    """Operations and their options, which are counted once for each operation under them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_operations = 0

    def add_program(self, program: Program, num_operations: int = 1) -> None:
        self.num_operations += num_operations
        self.counts.update(dict.fromkeys(_configured(program.config), num_operations))
        for step in program.steps:
            cls = type(step).__name__
            self.counts.update([cls, *(f"{cls}.{name}" for name in _other(step))])

    def never_drawn(self) -> list[str]:
        names = (
            *_every_option(),
            *LARGE,
            *(f"choice of {name}" for name in OTHERS),
            *_every_step(),
        )
        return [name for name in names if not self.counts[name] and name not in NEVER]

    def never_drawn_small(self) -> list[str]:
        """Return those of small configurations that no program had."""
        left_out = {*NEVER, *OF_LARGE}
        return [name for name in _every_option() if not self.counts[name] and name not in left_out]
