"""The results of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kvcheck.tools.replay.explain import Waterfall
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.series import Series


@dataclass(slots=True)
class Counts:
    """Everything the driver counts; see the keys of the report."""

    requests: int = 0
    tokens_queried: int = 0
    tokens_hit: int = 0
    preempted_requests: int = 0
    preempted_tokens_queried: int = 0
    preempted_tokens_hit: int = 0
    evictions: int = 0
    preemptions: int = 0
    steps: int = 0
    tokens_computed: int = 0
    tokens_generated: int = 0
    tokens_loaded: int = 0
    blocks_copied: int = 0
    peak_usage: float = 0.0
    usage_sum: float = 0.0

    @property
    def mean_usage(self) -> float:
        """Mean over the steps."""
        return self.usage_sum / self.steps if self.steps else 0.0

    @property
    def hit_rate(self) -> float:
        """Hit tokens per queried token over first admissions."""
        return self.tokens_hit / self.tokens_queried if self.tokens_queried else 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The figures of an engine during a replay.

    `usage`: of the last step. `num_preempted`: requests that wait after a preemption.
    `num_waiting`: these, and those that are due with `--arrival timestamp`; without it all the rest
    of the trace waits, and is not counted.
    """

    counts: Counts
    clock_ms: int
    usage: float
    num_running: int
    num_preempted: int
    num_waiting: int


def summed(counts: Sequence[Counts]) -> Counts:
    """Add up what engines count; the peak is the highest."""
    sums = {each.name: sum(getattr(one, each.name) for one in counts) for each in fields(Counts)}
    return Counts(**{**sums, "peak_usage": max(each.peak_usage for each in counts)})


def whole(moments: Sequence[Moment]) -> Moment:
    """Combine all engines: their mean usage, their highest peak, and sums."""
    return Moment(
        summed([each.counts for each in moments]),
        max(each.clock_ms for each in moments),
        sum(each.usage for each in moments) / len(moments),
        sum(each.num_running for each in moments),
        sum(each.num_preempted for each in moments),
        sum(each.num_waiting for each in moments),
    )


@dataclass(frozen=True)
class ReplayResult:
    """The results of a finished replay. `seconds`: of wall time."""

    options: ReplayOptions
    counts: Counts
    seconds: float
    waterfall: Waterfall
    series: Series
