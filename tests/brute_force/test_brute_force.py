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
from kvcheck.judge.inside_programs import InsideDraw, inside_config
from kvcheck.play.agreement import require_same
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.steps import Break, Program
from kvcheck.rules.specs import chunked, sliding
from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation
from tests.brute_force.by_token import most_held, tokens_read
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
    """Compares each look-up that may end inside a block; others are in `test_over_time.py`."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        tracked = done.request
        if done.name != "get_computed_blocks" or tracked is None or done.outcome.error is not None:
            return
        request, expected = runner.subject.player.requests[tracked.name], (0, list[list[int]]())
        if not tracked.arrival.skip_reading:
            state = done.before.snapshot
            expected = inside_hit(runner.config, state, request, request.num_tokens - 1)
        found, rule = done.outcome.result, "KV-INSIDE-7"
        require_same(rule, "the longest hit in tokens", expected[0], found["num_computed_tokens"])
        if sum(not spec.is_state for spec in runner.specs) == 1:  # of several by the rounds
            blocks = expected[1] if expected[0] else [[] for _ in runner.specs]
            require_same(rule, "the longest hit", blocks, found["blocks"])


def programs(seed: int) -> Iterator[Program]:
    """Yield programs that the statement covers: without drops or lookahead."""
    random = Random(seed)
    while True:
        config = replace(inside_config(random), use_eagle=False, hash_lookahead_tokens=0)
        draw = InsideDraw(random, config, long_texts=True)
        steps = [step for _ in range(20) for step in draw.habit() if not isinstance(step, Break)]
        yield Program(draw.config, tuple(steps))


def play(subject: Implementation, count: int, seed: int = 0) -> None:
    for program in islice(programs(seed), count):
        runner = Runner(program, subject)
        runner.checks = [HitCheck()]
        perform(runner, program.steps)


@pytest.mark.rule("KV-INSIDE-7", "KV-INSIDE-8", "KV-INSIDE-9")
def test_the_longest_hit_inside_a_block_is_found(pytestconfig: pytest.Config) -> None:
    play(kvref.implementation(), 1_500 if pytestconfig.getoption("--deep") else 50)


@pytest.mark.parametrize(
    "mistake", ["SaysOneTokenLess", "ShortestBoundary", "BoundaryBeyondTheLimit"]
)
def test_shorter_and_longer_hits_are_seen(mistake: str) -> None:
    with pytest.raises(InvariantViolation, match="longest hit"):
        play(mistaken(mistake), 100)


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


def test_nothing_is_found_in_the_reference() -> None:
    vectors = make_vectors(num_worlds=300, num_prompts=100)
    assert enumeration_finds(kvref.implementation(), vectors) is None
