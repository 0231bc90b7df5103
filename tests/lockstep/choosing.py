"""Whole steps under choices that the rules do not make by themselves, and what engines do since."""

from __future__ import annotations

from random import Random
from typing import Any

from kvcheck.judge.choices import IN_FLIGHT_TOKENS, OTHERS, chosen
from kvcheck.rules.batch_sides import Side
from kvspec.config import ManagerConfig
from tests.lockstep.engines import LongEngine


class ChoosingEngine(LongEngine):
    """Choices that the rules do not make by themselves, tokens in flight, and recent hit rates."""

    def __init__(self, sides: Any, random: Random, *, times: int = 1) -> None:
        super().__init__(sides, random, times=times)
        most = random.choice((1, 3, 1000))
        self.windows = [side.implementation.make_hit_rate_window(most) for side in self.sides]

    def config_of(self, random: Random) -> ManagerConfig:
        """One of production, and choices."""
        return chosen(super().config_of(random), random.randrange(len(OTHERS)), random)

    def between_steps(self) -> None:
        """Also: steps are under way, and somebody reads the statistics."""
        super().between_steps()
        for handle in self.some(self.handles, 0.3):
            count = self.random.choice(IN_FLIGHT_TOKENS)
            self.note(**{"tokens in flight": count})
            for side in self.sides:
                request: Any = side.batched.request_of(handle)
                request.num_in_flight_tokens = count

    def compare(self, rule: str, what: str) -> None:
        """Read the statistics nine times in ten: a comparison of the whole state empties them."""
        if self.random.random() < 0.9:
            self.read_statistics()
        super().compare(rule, what)

    def read_statistics(self) -> None:
        """The counts, and the hit rate over the last requests."""

        def rate(side: Side) -> tuple[object, ...]:
            stats, window = side.manager.make_prefix_cache_stats(), windows[id(side)]
            if stats is not None:
                window.observe(stats)
            return stats, window.num_requests, window.hit_rate

        windows = {id(side): window for side, window in zip(self.sides, self.windows, strict=True)}
        _, num_requests, _ = self.both("KV-STAT-4", "the recent hit rate", rate)
        self.note(**{"hit rates": num_requests})
