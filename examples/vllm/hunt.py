"""Random programs at real sizes on vLLM's manager, whose content is read back.

    PYTHONHASHSEED=0 python -m examples.vllm.hunt --programs 100000 --until 13:15 --keep FOLDER

Seven of eight are about hits inside a block, the others are those of `tests.lockstep.production`.
What a block holds is checked after each operation (`kvcheck.play.shadow`), the invariants in one
program of twenty; illegal calls are left out. The counts are printed every minute: by what of
docs/FINDINGS.md it is, else as NEW, by rule, check and last call. They are kept in FOLDER, and so
are the first programs of each kind. `--into docs/FINDINGS.md` writes there what FOLDER says of all
runs that ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, cast

from bench.tables import put
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
KEPT = 5
"""Programs of each kind."""


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
        """Make a manager of vLLM's with a fresh pool."""
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


def violation(
    program: Program,
    subject: Implementation,
    checks: Sequence[Check],
    oracle: Implementation | None = None,
) -> Violation | None:
    """Return what the content oracle, or one of these checks, finds in a program.

    Raises LeftOut for a configuration that the subject does not support.
    """
    runner: Runner | None = None
    try:
        runner = Runner(program, subject, oracle)
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


def hunt(asked: argparse.Namespace) -> Counter[str]:
    """Count programs, operations, and findings of each kind."""
    whole = implementation()
    quick = QuickImplementation(whole.library)
    found: Counter[str] = Counter()
    logging.disable(logging.CRITICAL)
    said = time.monotonic()
    for number in itertools.count(asked.first):
        if found["programs"] >= asked.programs or f"{datetime.now(UTC):%H:%M}" == asked.until:
            return found
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"to {number}, {time.process_time():.0f} s", dict(found), flush=True)
        policy = whole.library.policy
        subject, is_quick = (whole, False) if number % 20 == 7 else (quick, True)
        program = random_program(
            drawn(asked.seed, number),
            whole.capabilities,
            policy,
            hashes_matter=False,
            oracle=None,
        )
        if program is None:
            found["nothing left"] += 1
            continue
        try:
            checks: list[Check] = [EventCheck()] + [InvariantCheck()] * (not is_quick)
            one = violation(program, subject, checks)
        except LeftOut as reason:
            found[f"left out: {reason}"] += 1
            continue
        found["programs"] += 1
        if one is not None:
            kind = cause(one)
            found[kind] += 1
            if found[kind] <= KEPT:
                print(f"program {number}: {kind}: {one.detail}", flush=True)
                (asked.keep / f"{asked.seed}-{number}.pickle").write_bytes(pickle.dumps(one))
    raise AssertionError


def table_of(folder: Path) -> list[str]:
    """Return the findings of all finished runs in a folder, as a table."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    counts = sum((Counter(run["counts"]) for run in runs), Counter[str]())
    programs = counts.pop("programs")
    left_out = sum(counts.pop(kind) for kind in list(counts) if "left" in kind)
    cpu_s = sum(run["cpu_s"] for run in runs)
    return [
        "| what | programs |",
        "|---|---:|",
        *(f"| {kind} | {count:,} |" for kind, count in counts.most_common()),
        f"| nothing that is wrong | {programs - counts.total():,} |",
        f"| all, in {cpu_s:,} seconds of the processor | {programs:,} |",
    ] + [f"| drawn, and left out | {left_out:,} |"] * (left_out > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--until", default="", help="the time of day to stop at, UTC")
    parser.add_argument("--keep", type=Path, required=True, help="a folder for what is found")
    parser.add_argument("--into", type=Path, help="the page to write, when this run has ended")
    asked = parser.parse_args(arguments)
    asked.keep.mkdir(exist_ok=True)
    found = hunt(asked)
    ran = {"first": asked.first, "cpu_s": round(time.process_time()), "counts": found}
    (asked.keep / f"{asked.seed}-{asked.first}.json").write_text(json.dumps(ran), encoding="utf-8")
    put(table_of(asked.keep), "hunt", asked.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
