"""Look-ups of random programs: the longest hit by trying every length, also inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

import kvref
from kvcheck.judge.inside_programs import InsideDraw, inside_config
from kvcheck.play.agreement import require_same
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.steps import Break, Program
from kvspec.errors import InvariantViolation
from kvspec.inside import hits_end_inside
from kvspec.interface import Implementation
from kvspec.specs import FullAttentionSpec
from tests.brute_force.agreement import Cache, agreed_hit
from tests.brute_force.inside import inside_hit
from tests.mistakes import mistaken


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
