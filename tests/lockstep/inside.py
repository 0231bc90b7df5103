"""Programs and whole steps in which hits end inside a block, beyond what a careful caller asks.

`kvcheck.judge.inside_programs` draws what an engine does. Here groups that drop, windows and states
of other modes stand beside them, copies wait, chunks end anywhere, and loads come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any, cast

import kvref
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.play import steps as st
from kvcheck.play.agreement import require_same
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Performed, Runner, Tracked
from kvcheck.play.steps import Program
from kvcheck.rules.batch_sides import Side
from kvspec.config import KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.inside import BlockCopies, CopyingManager
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.profile import find_profile
from kvspec.specs import LayerSpec, MambaSpec, SlidingWindowSpec
from tests.lockstep.following import Following

BESIDE_LOADS = ("whole blocks where external tokens come", "look the request up again")
"""What a load beside such a hit is answered, by both."""


class Careless(Runner):
    """Copies are taken now and then; nothing else is known of hits inside blocks."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.has_copies, self.ends_inside = self.ends_inside, False
        self.random = Random(1)

    def _copies_after(
        self, name: str, request: Tracked | None, outcome: Outcome
    ) -> Mapping[str, Any] | None:
        if self.has_copies and name == "allocate_slots" and self.random.random() < 0.3:
            self.ask("take_block_copies", None, {}, lambda side: {})
        return None


class WrittenCheck:
    """What a step writes is noted alike (KV-INSIDE-17); others may know it in another way."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Compare it."""
        expected, got = done.oracle_after, done.after
        if expected is not None:
            sides = (expected.snapshot.written_from, got.snapshot.written_from)
            require_same("KV-INSIDE-17", f"written_from after {done.name}", *sides)

    def after_step(self, runner: Runner) -> None:
        """Nothing besides."""


def run(program: Program, subject: Implementation, *, is_careful: bool) -> int:
    """Run a program on both; the number of calls, each compared with its state and events."""
    runner = (Runner if is_careful else Careless)(program, subject, kvref.implementation())
    runner.checks = [CompareCheck(exact_ids=True), WrittenCheck(), EventCheck()]
    try:
        perform(runner, program.steps)
    except InvariantViolation as violation:
        if is_careful or not any(answer in str(violation) for answer in BESIDE_LOADS):
            raise
    return len(runner.operations)


def with_more(config: ManagerConfig, random: Random) -> ManagerConfig:
    """The configuration with other groups beside, some of which drop, and either choice."""
    groups, h = list(config.kv_cache.groups), config.hash_block_size_tokens or 1
    more: list[LayerSpec] = []
    if random.random() < 0.3:
        window = random.choice((1, 3, 5, 9))
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


def programs(seed: int, num_steps: int) -> Iterator[tuple[Program, bool]]:
    """Random programs; every third has the caller's care."""
    random, batch = Random(seed), 0
    while True:
        for number, program in enumerate(inside_programs(seed, batch, num_steps)):
            is_careful = number % 3 == 0
            steps = program.steps
            if not is_careful:  # states get no partial entries
                steps = tuple(step for step in steps if not isinstance(step, st.CachePartial))
            config = with_more(program.config, random)
            yield replace(program, config=config, steps=steps), is_careful
        batch += 1


def find_difference(subject: Implementation, seed: int, num_calls: int, num_steps: int) -> int:
    """Compare as many calls; how many there were. A difference is an InvariantViolation."""
    calls = 0
    for program, is_careful in programs(seed, num_steps):
        calls += run(program, subject, is_careful=is_careful)
        if calls >= num_calls:
            break
    return calls


def take_copies(side: Side) -> BlockCopies:
    """The copies of the step."""
    return cast(CopyingManager, side.manager).take_block_copies()


class InsideEngine(Following):
    """Whole steps; between them the copies are taken, and what they hold is given back."""

    num_copies = 0

    def between_steps(self) -> None:
        """Also the copies of the step."""
        super().between_steps()
        copies = self.both("KV-INSIDE-4", "copies", take_copies)
        self.num_copies += len(copies.pairs)
        if copies.retained:
            retained = list(copies.retained)
            self.both("KV-INSIDE-4", "their ends", lambda side: side.manager.free_blocks(retained))


def engine(random: Random, sides: Any) -> InsideEngine:
    """One on a configuration in which hits end inside a block."""
    (program,) = (next(inside_programs(random.randrange(1000), 0, 1)),)
    return InsideEngine(with_more(program.config, random), sides, random)
