"""Random programs at real sizes on vLLM's manager, whose content is read back.

    PYTHONHASHSEED=0 python -m examples.vllm.hunt --programs 10000

Seven of eight are about hits inside a block, the others are those of `tests.lockstep.production`.
What a block holds is checked after each operation (`kvcheck.play.shadow`), the invariants in one
program of twenty; illegal calls are left out. Prints how many programs end at what of
docs/FINDINGS.md, else at NEW, by rule, check and last call.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

from kvcheck.adapters.vllm import implementation
from kvcheck.adapters.vllm.implementation import VLLMImplementation
from kvcheck.adapters.vllm.manager import VLLMManager
from kvcheck.judge.inside_programs import large_inside_program
from kvcheck.judge.production import production_program
from kvcheck.play.checks import EventCheck, InvariantCheck, ShadowCheck
from kvcheck.play.fit import random_program
from kvcheck.play.left_out import LeftOut
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.steps import Arrive, Break, Program
from kvcheck.play.verdicts import Violation, violation_of
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.snapshot import Snapshot

MAX_STEPS = 40
MOST_BLOCKS = 5000


class SeenWhenAsked:
    """A snapshot of which only what is read is taken, when it is read first."""

    def __init__(self, manager: VLLMManager) -> None:
        self._manager = manager
        self._whole: Snapshot | None = None

    @property
    def block_keys(self) -> tuple[tuple[bytes, ...], ...]:
        """The keys of each block: all that is read after most operations."""
        pool = self._manager.inner.block_pool
        further = pool.cached_block_hashes_by_block
        primary = [block.block_hash for block in pool.blocks]
        return tuple(
            () if key is None else (key, *sorted(further.get(block, ())))
            for block, key in enumerate(primary)
        )

    def __getattr__(self, name: str) -> Any:
        if self._whole is None:
            self._whole = VLLMManager.snapshot(self._manager)
        return getattr(self._whole, name)


class QuickManager(VLLMManager):
    """The adapter's manager, which is asked for snapshots after each call."""

    def snapshot(self) -> Any:
        return SeenWhenAsked(self)


class QuickImplementation(VLLMImplementation):
    """vLLM with managers of that kind."""

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        return cast(KVCacheManager, QuickManager(self.library, config))


def drawn(seed: int, number: int) -> Program:
    """Program `number` of a seed, without illegal calls, and embeddings, which are as long as the
    prompt at vLLM's."""
    random = Random(seed * 1_000_003 + number)
    program = large_inside_program(random, MAX_STEPS)
    while number % 8 == 7:
        program = production_program(random, MAX_STEPS)
        if program.config.kv_cache.num_blocks <= MOST_BLOCKS:
            break
    if number % 5:
        program = replace(program, config=replace(program.config, enable_events=False))
    legal = (step for step in program.steps if not isinstance(step, Break))
    steps = (replace(s, embedded=None) if isinstance(s, Arrive) else s for s in legal)
    return replace(program, steps=tuple(steps))


def violation(program: Program, subject: Implementation, checks: Sequence[Check]) -> Any:
    """Return what the content oracle, or one of these checks, finds in a program.

    Raises LeftOut for a configuration that the subject does not support.
    """
    runner: Runner | None = None
    try:
        runner = Runner(program, subject, None)
        runner.checks = [ShadowCheck(runner), *checks]
        perform(runner, program.steps)
    except LeftOut:
        raise
    except Exception as found:  # whatever vLLM raises is a finding
        return violation_of(found, program, () if runner is None else runner.operations)
    return None


def cause(found: Violation) -> str:
    """Return the entry of docs/FINDINGS.md that explains it."""
    call, request, last = found.operations[-1] if found.operations else ("", None, {})
    prompts = {r: a["prompt_token_ids"] for n, r, a in found.operations if n == "new_request"}
    admitted = [a for n, r, a in found.operations if (n, r) == ("allocate_slots", request)]
    num_external = admitted[-1].get("num_external_computed_tokens", 0) if admitted else 0
    counted = ("num_computed_tokens", "num_new_computed_tokens", "num_external_computed_tokens")
    num_there = sum(admitted[-1].get(each, 0) for each in counted) if admitted else 0
    specs = found.program.config.managed_specs
    states = [spec for spec in specs if spec.is_state]
    if found.rule == "KV-INSIDE-2" and any(spec.has_checkpoints for spec in states):
        return "a state under too long a key"
    if found.rule == "KV-INSIDE-6":
        return "a copy of a copy"
    if last.get("max_cache_hit_length", 0) > len(prompts.get(request, ())):
        return "hits per group beyond the text"
    if found.program.config.hash_lookahead_tokens and "IndexError" in found.detail:
        return "with look-ahead, a look-up past the hashes"
    if num_external and num_there >= len(prompts.get(request, ())):
        return "a load of the whole prompt"
    if num_external and states and "Cannot get" in found.detail:
        return "the need of aligned Mamba with external tokens"
    return f"NEW {found.rule} {found.name} {call}"


def main() -> None:
    """Count programs by what they end at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    whole = implementation()
    quick = QuickImplementation(whole.library)
    found: Counter[str] = Counter()
    for number in range(asked.first, asked.first + asked.programs):
        given = drawn(asked.seed, number)
        policy, able = whole.library.policy, whole.capabilities
        program = random_program(given, able, policy, hashes_matter=False, oracle=None)
        checks: list[Check] = [EventCheck()] + [InvariantCheck()] * (number % 20 == 7)
        kind = "nothing left"
        try:
            if program is not None:
                one = violation(program, whole if number % 20 == 7 else quick, checks)
                kind = "nothing that is wrong" if one is None else cause(one)
        except LeftOut as reason:
            kind = f"left out: {reason}"
        found[kind] += 1
        if kind.startswith("NEW"):
            print(f"program {number}: {kind}: {one.detail}", flush=True)
    for kind, count in found.most_common():
        print(f"{count:,} programs: {kind}")


if __name__ == "__main__":
    main()
