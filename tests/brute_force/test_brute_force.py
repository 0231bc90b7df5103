"""Hits and what is worth caching, by enumeration in any cache and in programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge.inside_programs import InsideDraw, inside_config
from kvcheck.play.agreement import require_same
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.steps import Break, Program
from kvcheck.rules.specs import chunked, mamba, sliding
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.inside import hits_end_inside
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec
from tests.brute_force.agreement import Cache, agreed_hit
from tests.brute_force.by_token import is_read, most_held, tokens_of, tokens_read
from tests.brute_force.enumeration import (
    enumerated,
    enumeration_finds,
    make_vectors,
    worth_caching,
    wrong_look_up,
    wrongly_cached,
)
from tests.brute_force.inside import inside_hit
from tests.brute_force.worlds import (
    Placed,
    configs,
    contested_worlds,
    placed_worlds,
    retained_tails,
    short_beginnings,
)
from tests.mistakes import mistaken

MANY = 4 * settings().max_examples
"""Each example is asked some twenty questions; with --deep there are 30 times as many examples."""


def expect_enumerated(implementation: Implementation, world: Placed) -> None:
    """Compare hits of all lengths, agreed and per group."""
    manager = world.build(implementation)
    expected = enumerated(world, implementation, manager)
    assert wrong_look_up(implementation, manager, expected) is None


@pytest.mark.rule("KV-FULL-2", "KV-FULL-3", "KV-FULL-4", "KV-SW-2", "KV-SW-3", "KV-SW-4", "KV-SW-5")
@pytest.mark.rule("KV-SW-6", "KV-CHUNK-2", "KV-MAMBA-3", "KV-POOL-13", "KV-HASH-5", "KV-HASH-6")
@pytest.mark.rule("KV-COORD-2", "KV-COORD-4", "KV-COORD-5", "KV-COORD-6", "KV-COORD-7")
@pytest.mark.rule("KV-COORD-8", "KV-COORD-9", "KV-COORD-10", "KV-COORD-11", "KV-COORD-12")
@given(world=placed_worlds() | contested_worlds())
@settings(max_examples=MANY)
def test_hits_are_what_enumeration_finds_in_any_cache(
    implementation: Implementation, world: Placed
) -> None:
    expect_enumerated(implementation, world)


@pytest.mark.rule("KV-SW-4", "KV-SW-5")
@pytest.mark.parametrize("world", short_beginnings())
def test_short_beginnings_are_what_enumeration_finds(
    implementation: Implementation, world: Placed
) -> None:
    expect_enumerated(implementation, world)


@pytest.mark.rule("KV-RET-1", "KV-RET-2", "KV-RET-3", "KV-RET-4", "KV-RET-5", "KV-FULL-6")
@pytest.mark.rule("KV-CHUNK-4", "KV-SW-6", "KV-COORD-13", "KV-GRP-11")
@given(config=configs(retaining=True), num_tokens=st.integers(1, 40))
def test_what_is_cached_is_what_boundaries_need(
    implementation: Implementation, config: ManagerConfig, num_tokens: int
) -> None:
    expected = worth_caching(implementation.create(config).config, num_tokens)
    assert wrongly_cached(implementation, expected) is None


@pytest.mark.rule("KV-RET-1", "KV-RET-2", "KV-RET-3", "KV-RET-4", "KV-COORD-13")
@pytest.mark.parametrize(("config", "num_tokens"), retained_tails())
def test_tails_are_what_boundaries_need(
    implementation: Implementation, config: ManagerConfig, num_tokens: int
) -> None:
    expected = worth_caching(implementation.create(config).config, num_tokens)
    assert wrongly_cached(implementation, expected) is None


class HitCheck(Check):
    """Compares each look-up in blocks and tokens."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        tracked, config, state = done.request, runner.config, done.before.snapshot
        if done.name != "get_computed_blocks" or tracked is None or done.outcome.error is not None:
            return
        request, expected = runner.subject.player.requests[tracked.name], (0, list[list[int]]())
        reads = config.enable_caching and not tracked.arrival.skip_reading
        most = request.num_tokens - max(1, config.hash_lookahead_tokens)
        if reads and hits_end_inside(config):
            expected = inside_hit(config, state, request, most)
        elif reads:
            if config.dcp_world_size > 1:  # a block spans the tokens of all ranks (KV-CFG-6)
                (group,) = config.kv_cache.groups
                size = group.spec.block_size * config.dcp_world_size
                whole = replace(group, spec=FullAttentionSpec(size, 1, 8, "float16"))
                config = replace(config, kv_cache=replace(config.kv_cache, groups=(whole,)))
            hit = agreed_hit(Cache(config, state, request.block_hashes), most)
            expected = hit.hit_length_tokens, hit.blocks.to_lists()
        found, rule = done.outcome.result, "KV-COORD-5"
        require_same(rule, "the longest hit in tokens", expected[0], found["num_computed_tokens"])
        several = sum(not spec.is_state for spec in runner.specs) > 1
        if not (several and hits_end_inside(config)):  # there blocks depend on the rounds
            blocks = expected[1] if expected[0] else [[] for _ in runner.specs]
            require_same(rule, "the longest hit", blocks, found["blocks"])


def programs(seed: int) -> Iterator[Program]:
    """Yield programs that the statements cover: inside a block none with drops or lookahead."""
    random = Random(seed)
    while True:
        draw = Draw(random, random_config(random, is_mixed=True))
        if random.random() < 0.3:
            config = replace(inside_config(random), use_eagle=False, hash_lookahead_tokens=0)
            draw = InsideDraw(random, config, long_texts=True)
        steps = [step for _ in range(20) for step in draw.habit() if not isinstance(step, Break)]
        yield Program(draw.config, tuple(steps))


def play(subject: Implementation, count: int, seed: int = 0) -> None:
    for program in islice(programs(seed), count):
        runner = Runner(program, subject)
        runner.checks = [HitCheck()]
        perform(runner, program.steps)


def test_kvref_finds_the_longest_hit() -> None:
    play(kvref.implementation(), 150)


@pytest.mark.deep
def test_kvref_finds_the_longest_hit_in_thousands_of_programs() -> None:
    play(kvref.implementation(), 5_000, seed=1)


@pytest.mark.parametrize(
    "mistake",
    ["HitsOneBlockLess", "SaysOneTokenLess", "ShortestBoundary", "BoundaryBeyondTheLimit"],
)
def test_shorter_and_longer_hits_are_seen(mistake: str) -> None:
    with pytest.raises(InvariantViolation, match="longest hit"):
        play(mistaken(mistake), 300)


@pytest.mark.rule("KV-SW-7", "KV-CHUNK-5", "KV-MGR-5")
def test_admission_counts_what_can_be_held_at_once() -> None:
    config = ManagerConfig(KVCacheConfig(9, ()), 100)
    for size, reach, step, longest in product((1, 2, 3), range(1, 7), range(1, 6), (9, 14)):
        bounded = replace(config, max_num_batched_tokens=step, max_model_len_tokens=longest)
        for spec in (sliding(size, reach), chunked(size, size * reach)):
            held = max(
                len({token // size for token in range(min([*tokens_read(spec, at), at]), end)})
                for at in range(longest)
                for end in range(at + 1, min(at + step, longest) + 1)
            )
            counted = most_held(bounded, spec, size)
            assert counted is not None
            assert held <= counted <= held + 1, (spec, step, longest)


@pytest.mark.rule("KV-MAMBA-6", "KV-MAMBA-9", "KV-MAMBA-11", "KV-MAMBA-5")
@pytest.mark.parametrize("name", ["kvref", "kvfast"])
def test_the_states_of_mode_align_are_those_where_steps_ended(name: str) -> None:
    implementation = find_implementation(name)
    for drafted, *steps in product((0, 1, 2), *[(1, 3, 4, 5, 8)] * 3):
        spec = mamba(4, "align", speculative=drafted)
        groups = (KVCacheGroup(("layer0",), spec),)
        config = ManagerConfig(KVCacheConfig(30, groups), 100, hash_seed="0")
        manager = implementation.create(config, check_invariants=False)
        request = implementation.make_request(manager, RequestInput("r", range(sum(steps))))
        there: set[int] = set()
        for step in steps:
            computed = request.num_computed_tokens
            sure = max(0, computed - drafted)
            there = {entry for entry in there if is_read(spec, tokens_of(entry, 4), sure)}
            assert manager.allocate_slots(request, step) is not None
            request.num_computed_tokens = computed + step
            last = (computed + step - 1) // 4
            there.add(last)
            (blocks,) = manager.get_blocks(request).groups
            held = {entry for entry, block in enumerate(blocks) if block}
            assert held == there | set(range(last + 1, last + 1 + drafted)), (drafted, steps)


def test_nothing_is_found_in_the_reference() -> None:
    vectors = make_vectors(num_worlds=300, num_prompts=100)
    assert enumeration_finds(kvref.implementation(), vectors) is None
