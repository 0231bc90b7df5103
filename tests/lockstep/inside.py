"""Programs and whole steps in which hits end inside a block, beyond what a careful caller asks.

`kvcheck.judge.inside_programs` draws what an engine does. Here groups that drop, windows and states
of other modes stand beside them, copies wait, chunks end anywhere, and loads come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from kvcheck.judge.inside_programs import (
    LongInsideDraw,
    inside_config,
    large_inside_program,
)
from kvcheck.play import steps as st
from kvcheck.play.agreement import require_same
from kvcheck.play.performing import perform
from kvcheck.play.player import Outcome
from kvcheck.play.random_programs import program_of_steps
from kvcheck.play.runner import Check, Copies, Performed, Runner, Tracked
from kvcheck.play.steps import Program
from kvspec.config import GIVEN_HASHES, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.policy import Policy
from kvspec.profile import find_profile
from kvspec.specs import CircularBufferSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.lockstep.choices import reporting, under_choices

CARELESS = "whole steps inside blocks"
BESIDE_LOADS = ("whole blocks where external tokens come", "look the request up again")
"""What a load beside such a hit is answered, by both."""


class Careless(Runner):
    """Copies are taken now and then; nothing else is known of hits inside blocks."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.has_copies, self.ends_inside = self.ends_inside, False
        self.random = Random(1)

    def copies_after(self, name: str, request: Tracked | None, outcome: Outcome) -> Copies:
        """Those of several allocations at once."""
        if not self.has_copies or name != "allocate_slots" or self.random.random() >= 0.3:
            return None, None
        _, taken, expected = self.ask("take_block_copies", None, {}, lambda side: {})
        return taken.result, None if expected is None else expected.result


class WrittenCheck(Check):
    """What a step writes is noted alike (KV-INSIDE-17); others may know it in another way."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        expected, got = done.oracle_after, done.after
        if expected is not None:
            sides = (expected.snapshot.written_from, got.snapshot.written_from)
            require_same("KV-INSIDE-17", f"written_from after {done.name}", *sides)


def perform_careless(runner: Runner, program: Program) -> bool:
    """Perform a program; whether it came to its end: a load beside such a hit may be refused."""
    try:
        perform(runner, program.steps)
    except InvariantViolation as violation:
        is_refused = any(answer in str(violation) for answer in BESIDE_LOADS)
        if not isinstance(runner, Careless) or not is_refused:
            raise
        return False
    return True


def with_more(config: ManagerConfig, random: Random) -> ManagerConfig:
    """The configuration with other groups beside, some of which drop, and either choice."""
    groups, h = list(config.kv_cache.groups), config.hash_block_size_tokens or 1
    more: list[LayerSpec] = []
    if random.random() < 0.3:
        window = random.choice((1, 3, 5, 9)) * (h if h > 2 else 1)
        more.append(SlidingWindowSpec(h, 1, 8, "float16", sliding_window=window))
    if random.random() < 0.2:
        size, mode = max(g.spec.block_size for g in groups), random.choice(("all", "none"))
        more.append(MambaSpec(size, ((3,),), ("float32",), mamba_cache_mode=mode))
    groups += [KVCacheGroup((f"more.{n}",), spec) for n, spec in enumerate(more)]
    if random.random() < 0.3:
        flagged = random.randrange(len(groups))
        groups[flagged] = replace(groups[flagged], is_eagle_group=True)
    policy = random.choice((find_profile("vllm-0.33").policy, Policy(hits_inside_blocks=True)))
    cache = replace(config.kv_cache, groups=tuple(groups))
    return replace(config, kv_cache=cache, policy=policy, use_eagle=random.random() < 0.3)


def with_later(config: ManagerConfig, random: Random) -> ManagerConfig:
    """Some with hash look-ahead, with windows that retain more, or with a ring beside."""
    groups, h = list(config.kv_cache.groups), config.hash_block_size_tokens or 1
    if random.random() < 0.5:
        more = random.choice((1, h, 5 * h))
        for place, group in enumerate(groups):
            if isinstance(group.spec, SlidingWindowSpec):
                groups[place] = replace(group, spec=replace(group.spec, extra_retained_tokens=more))
    if random.random() < 0.2:
        ring = CircularBufferSpec(random.choice((1, h, 4 * h)), 1, 8, "float16")
        groups.insert(random.randrange(len(groups) + 1), KVCacheGroup(("ring",), ring))
    cache = replace(config.kv_cache, groups=tuple(groups))
    ahead = random.choice((0, 0, 0, 0, 0, 1, 3, 9))
    return replace(config, kv_cache=cache, hash_lookahead_tokens=ahead)


def large_steps_inside(random: Random, num_rounds: int) -> Program:
    config = large_config(inside_config(random, is_large=True, room=2), random)
    return careless(program_of_steps(LongInsideDraw(random, config), num_rounds))


def careless(program: Program) -> Program:
    """Return what a careless caller does of it: states get no partial entries."""
    steps = tuple(step for step in program.steps if not isinstance(step, st.CachePartial))
    return replace(program, steps=steps, name=CARELESS)


def large_config(config: ManagerConfig, random: Random) -> ManagerConfig:
    """The configuration with statistics and hashes as engines set them; half with groups beside."""
    if random.random() < 0.5:
        config = with_more(config, random)
    return replace(
        with_later(config, random),
        log_stats=random.random() < 0.5,
        residency_sample_rate=random.choice((0.0, 0.0, 0.5)),
        hash_function=random.choice((*[config.hash_function] * 9, *GIVEN_HASHES)),
    )


def large_programs(seed: int, num_steps: int) -> Iterator[Program]:
    """Programs of a careful caller at real sizes, without end; some requests report their hits.

    Every fourth under choices that the rules do not make by themselves.
    """
    random = Random(seed)

    def usual() -> Iterator[Program]:
        for number in itertools.count():
            program = large_inside_program(random, num_steps)
            program = replace(program, config=large_config(program.config, random))
            yield reporting(program, Random(number))

    drawn, chosen = usual(), under_choices(usual(), random)
    while True:
        yield from itertools.islice(drawn, 3)
        yield next(chosen)
