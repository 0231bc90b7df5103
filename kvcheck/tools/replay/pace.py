"""The progress of a replay: its recent hit rate, its speed, and the remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from kvcheck.tools.replay.result import Counts, Moment

WINDOW_REQUESTS = 1_000
"""Engines show the hit rate of as many (KV-STAT-5)."""

_WINDOW_SECONDS = 3.0
_MOST_MARKS = 4_000


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a replay, compared with earlier ones.

    `share`: of the trace that is read, None if its end is unknown. `window_hit_rate`: of the last
    `window_requests`. The speeds are those of the last few seconds.
    """

    moment: Moment
    seconds: float
    share: float | None
    window_requests: int
    window_hit_rate: float
    requests_per_second: float
    tokens_per_second: float
    steps_per_second: float

    @property
    def seconds_left(self) -> float | None:
        """Remaining time at the mean speed so far."""
        if not self.share:
            return None
        return self.seconds * (1 - self.share) / self.share


class Pace:
    """Figures of one replay; of the moments before, those that they need are kept."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._marks: deque[tuple[float, Counts]] = deque([(self._began, Counts())], _MOST_MARKS)

    def see(self, moment: Moment, share: float | None) -> Figures:
        """Add a moment and return the figures."""
        now, counts, marks = self._clock(), moment.counts, self._marks
        window, since, before = marks[0][1], *marks[0]
        kept = 0
        for place, (time, earlier) in enumerate(marks):
            is_window = counts.requests - earlier.requests >= WINDOW_REQUESTS
            is_long = now - time >= _WINDOW_SECONDS
            window = earlier if is_window else window
            since, before = (time, earlier) if is_long else (since, before)
            kept = place if is_window and is_long else kept
            if not (is_window or is_long):
                break
        for _ in range(kept):
            marks.popleft()
        marks.append((now, counts))
        queried = counts.tokens_queried - window.tokens_queried
        seconds = max(now - since, 1e-9)
        return Figures(
            moment,
            now - self._began,
            share,
            counts.requests - window.requests,
            (counts.tokens_hit - window.tokens_hit) / queried if queried else 0.0,
            (counts.requests - before.requests) / seconds,
            (_tokens(counts) - _tokens(before)) / seconds,
            (counts.steps - before.steps) / seconds,
        )


def _tokens(counts: Counts) -> int:
    """Count tokens of prompts, including hit ones, and generated ones."""
    return counts.tokens_queried + counts.tokens_generated
