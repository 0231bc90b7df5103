"""Draw options that were added after the first rules, per configuration or per request.

Single choices of policy, hashes of every function and seed, the alignment of hits, tokens in
flight, and requests whose hits are reported. They are drawn apart from programs and engines, so
that those stay as they are.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from math import lcm
from random import Random
from types import MappingProxyType
from typing import Any

from kvcheck.judge.production import production_program
from kvcheck.play import steps as st
from kvcheck.play.steps import Program
from kvspec.config import HASH_FUNCTIONS, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import ChunkedLocalAttentionSpec

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


def under_choices(programs: Iterable[Program], random: Random) -> Iterator[Program]:
    for number, program in enumerate(programs):
        config = chosen(program.config, number, random)
        told = in_flight(replace(program, config=config), random)
        yield reporting(told, Random(number))


def chosen_programs(seed: int, max_steps: int) -> Iterator[Program]:
    """Yield programs of production sizes under such choices, without end."""
    random = Random(seed)
    programs = (production_program(random, max_steps) for _ in itertools.count())
    return under_choices(programs, Random(seed))
