"""Programs and whole steps in which hits end inside a block, beyond what a careful caller asks.

`kvcheck.judge.inside_programs` draws what an engine does. Here that is done at real sizes: prompts
of thousands of tokens, blocks of 16 to 256, pools of up to thousands, and in few programs hundreds
of requests. Groups that drop, windows and states of other modes stand beside them, copies wait,
chunks end anywhere, and loads come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from kvcheck.judge.inside_programs import InsideDraw, arrival_of, grouped, specs_of
from kvcheck.play import steps as st
from kvcheck.play.agreement import require_same
from kvcheck.play.performing import perform
from kvcheck.play.player import Outcome
from kvcheck.play.random_programs import LAST, Draw, program_of_steps, withdrawing
from kvcheck.play.runner import Check, Copies, Performed, Runner, Tracked
from kvcheck.play.steps import Program, Step
from kvspec.config import GIVEN_HASHES, KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.policy import Policy
from kvspec.profile import find_profile
from kvspec.specs import CircularBufferSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.lockstep.choices import reporting, under_choices
from tests.lockstep.drawing import LongDraw

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


def large_inside_config(random: Random, room: int = 2) -> ManagerConfig:
    """Draw as `inside_config` does; about `room` of the longest requests fit the pool."""
    h = random.choice((8, 16, 16, 32, 64))
    size = min(h * random.choice((2, 4, 8)), 256)
    size = h if random.random() < 0.15 else size
    specs = specs_of(random, h, size)
    longest = random.choice((1000, 2000, 4000, 8000))
    least, share = len(specs) * random.choice((6, 12, 20, 30)), random.choice((0.6, 1, 2, 4))
    filled = int(share * room * sum(longest / spec.block_size for spec in specs))
    return ManagerConfig(
        KVCacheConfig(min(max(filled, least), 10_000), grouped(specs)),
        max_model_len_tokens=longest,
        hash_block_size_tokens=h,
        policy=Policy(hits_inside_blocks=True),
        log_stats=True,
        enable_events=random.random() < 0.2,
        hash_seed="0",
        retention_interval_tokens=random.choice((None, None, 0, 0, 0, 2 * size)),
        watermark=random.choice((0.0, 0.0, 0.0, 0.2)),
    )


def large_inside_program(random: Random, max_steps: int) -> Program:
    """Draw a program; one of 500 has twenty times the steps and hundreds of requests."""
    has_many = random.random() < 0.002
    config = large_inside_config(random, room=20 if has_many else 2)
    draw = LongInsideDraw(random, config)
    steps: list[Step] = []
    length = random.randint(max_steps // 2, max_steps) * (20 if has_many else 1)
    while len(steps) < length:
        steps += _crowd(draw) if has_many and draw.chance(0.2) else draw.habit()
    return Program(config, withdrawing(random, steps[:length]), name="inside blocks at real sizes")


class LongInsideDraw(InsideDraw, LongDraw):
    """Prompts end at or near a few places of the texts, so that others begin where one ended."""

    def __init__(self, random: Random, config: ManagerConfig) -> None:
        LongDraw.__init__(self, random, config)
        self.h = config.hash_block_size_tokens or 1
        self.sizes = [self.h, *self.sizes]
        most = max(self.longest // self.h - 1, 2)
        first = [random.randrange(1000, 2**31) for _ in range(self.longest)]
        self.places = [self.h * random.randint(1, most) for _ in range(4)]
        self.places += [self.h * random.randint(1, min(most, 20)) for _ in range(2)]
        tails = [[own] * self.longest for own in (2, 3)]
        cuts = random.sample(self.places, 2)
        shared = [first[:cut] + tail[cut:] for cut, tail in zip(cuts, tails, strict=True)]
        self.texts = (first, shared[0], shared[1])

    def length_of(self, text: Sequence[int]) -> int:
        """Draw a length at one of the places, up to two blocks behind it, or anywhere."""
        place = self.random.choice(self.places)
        behind = (0, 1, 2, self.h // 2, self.h, self.h + 1, self.sizes[-1], 2 * self.sizes[-1] + 1)
        if self.chance(0.1):
            place = self.random.randint(1, len(text))
        return min(place + self.random.choice(behind), len(text))


def _crowd(draw: Draw) -> list[Step]:
    come = [each for _ in range(20) for each in (arrival_of(draw), st.Admit(LAST))]
    return [*come, *[draw.run() for _ in range(20)], st.NewStep()]


def large_steps_inside(random: Random, num_rounds: int) -> Program:
    config = large_config(large_inside_config(random), random)
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
