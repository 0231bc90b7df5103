"""Check the longest hit against an independent statement of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvcheck.judge.oracles import expect_equal
from kvcheck.play.runner import Performed, Runner
from kvspec.config import ManagerConfig
from kvspec.request import Request
from kvspec.snapshot import Snapshot

HitOracle: TypeAlias = Callable[
    [ManagerConfig, Snapshot, Request, int], tuple[int, list[list[int]]]
]
"""(config, state, request, most tokens) -> hit length in tokens, block ids per group."""


class LongestHitCheck:
    """Check that a look-up returns the hit that `oracle` states, to the block (KV-MGR-1)."""

    def __init__(self, oracle: HitOracle, *, rule: str) -> None:
        self.oracle = oracle
        self.rule = rule

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Compare a look-up; no hit may be found with caching off or reading skipped."""
        if done.name != "get_computed_blocks" or done.request is None or done.outcome.error:
            return
        config = runner.config
        expected: tuple[int, list[list[int]]] = (0, [[] for _ in config.kv_cache.groups])
        if config.enable_caching and not done.request.arrival.skip_reading:
            expected = self.oracle(
                config,
                done.before.snapshot,
                runner.subject.player.requests[done.request.name],
                len(done.request.seat.tokens) - 1,
            )
        length, blocks = expected
        hit = done.outcome.result
        expect_equal(self.rule, "the longest hit", blocks, hit["blocks"])
        expect_equal("KV-MGR-1", "hit length in tokens", length, hit["num_computed_tokens"])

    def after_step(self, runner: Runner) -> None:
        """Check nothing: only look-ups matter."""
