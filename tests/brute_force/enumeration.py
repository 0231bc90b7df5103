"""Differences between enumeration, on a fixed set of caches, and an implementation, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kvref
from kvspec.blocks import GroupHits, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from tests.brute_force.agreement import Cache, agreed_hit, own_hits
from tests.brute_force.by_token import cached_positions
from tests.brute_force.worlds import (
    Placed,
    ask,
    configs,
    contested_world,
    placed_worlds,
    retained_tails,
    short_beginnings,
    text_length,
)

RARE_SEEDS = (32, 63, 434, 577)
"""Contested worlds in which marks matter; a random one rarely tells twins of KV-COORD-8 apart."""


@dataclass(frozen=True)
class LookUps:
    """A cache, and the hit of every length of its text, found by enumeration."""

    world: Placed
    agreed: tuple[PrefixHit, ...]
    own: tuple[GroupHits, ...]


@dataclass(frozen=True)
class Prompt:
    """A configuration, and the cached positions of a prompt of this length, per group."""

    config: ManagerConfig
    num_tokens: int
    cached: tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Vectors:
    """Look-ups with their hits, none of them computed by an implementation."""

    look_ups: tuple[LookUps, ...]
    prompts: tuple[Prompt, ...]


def drawn(strategy: st.SearchStrategy[Any], number: int) -> list[Any]:
    examples: list[Any] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(example=strategy)
    def collect(example: Any) -> None:
        examples.append(example)

    collect()
    return examples


def make_vectors(num_worlds: int, num_prompts: int) -> Vectors:
    """Enumerate the expected hits; the reference only builds the caches."""
    reference = kvref.implementation()
    worlds = [*map(contested_world, RARE_SEEDS), *short_beginnings()]
    worlds += drawn(placed_worlds(), num_worlds)
    look_ups = [enumerated(world, reference, world.build(reference)) for world in worlds]
    asked = st.tuples(configs(retaining=True), st.integers(1, 40))
    prompts = [
        worth_caching(reference.create(config).config, num_tokens)
        for config, num_tokens in (*retained_tails(), *drawn(asked, num_prompts))
    ]
    return Vectors(tuple(look_ups), tuple(prompts))


def enumerated(world: Placed, implementation: Implementation, manager: KVCacheManager) -> LookUps:
    longest = text_length(manager.config)
    text = ask(implementation, manager, longest)
    cache = Cache(manager.config, manager.snapshot(), text.block_hashes)
    agreed = tuple(agreed_hit(cache, limit) for limit in range(longest))
    if len(manager.config.kv_cache.groups) == 1:
        return LookUps(world, agreed, ())
    return LookUps(world, agreed, tuple(own_hits(cache, limit) for limit in range(longest)))


def worth_caching(config: ManagerConfig, num_tokens: int) -> Prompt:
    """Enumerate the positions that a prompt of this length leaves cached."""
    groups = range(len(config.kv_cache.groups))
    cached = (frozenset(cached_positions(config, group, num_tokens)) for group in groups)
    return Prompt(config, num_tokens, tuple(cached))


def enumeration_finds(implementation: Implementation, vectors: Vectors) -> str | None:
    """Describe the first result that differs from enumeration, errors included."""
    try:
        for prompt in vectors.prompts:
            found = wrongly_cached(implementation, prompt)
            if found is not None:
                return found
        for question in vectors.look_ups:
            manager = question.world.build(implementation)
            found = wrong_look_up(implementation, manager, question)
            if found is not None:
                return found
    except Exception as error:  # whatever a broken part ends in
        return f"{type(error).__name__}: {error}"
    return None


def wrong_look_up(
    implementation: Implementation, manager: KVCacheManager, question: LookUps
) -> str | None:
    """Describe the first length with a wrong hit."""
    text = ask(implementation, manager, text_length(manager.config))
    for limit, expected in enumerate(question.agreed):
        got = manager.get_computed_blocks(ask(implementation, manager, limit + 1))
        if got != expected:
            return f"{question.world}, L = {limit}: expected {expected}, got {got}"
    for limit, own in enumerate(question.own):
        got_own = manager.find_longest_cache_hit_per_group(text, limit)
        if got_own != own:
            return f"{question.world}, per group, L = {limit}: expected {own}, got {got_own}"
    return None


def wrongly_cached(implementation: Implementation, prompt: Prompt) -> str | None:
    """Describe the first group that caches other positions."""
    manager = implementation.create(prompt.config)
    request = ask(implementation, manager, prompt.num_tokens)
    if manager.allocate_slots(request, prompt.num_tokens) is None:
        return f"{prompt}: refused"
    keys = manager.snapshot().block_keys
    for group, blocks in enumerate(manager.get_blocks(request).to_lists()):
        got = {position for position, block in enumerate(blocks) if keys[block]}
        there = {position for position, block in enumerate(blocks) if block}
        if got != prompt.cached[group] & there:
            return f"{prompt}: group {group} caches {got}"
    return None
