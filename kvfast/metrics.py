"""Counters of a manager for Prometheus, with vLLM's names.

The text needs no other package; with `prometheus_client` the same object is a collector:
`REGISTRY.register(metrics)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.metrics import HITS, LABELS, QUERIES, USAGE, Family
from kvspec.stats import PrefixCacheStats

if TYPE_CHECKING:
    from prometheus_client import Metric

PREEMPTED_QUERIES = Family(
    "kvspec:preempted_queries", "Tokens looked up again, of requests that were preempted."
)
PREEMPTED_HITS = Family("kvspec:preempted_hits", "Tokens of these that were hit.")
RESETS = Family("kvspec:prefix_cache_resets", "Reads that found the cache emptied.")
FAMILIES = (USAGE, QUERIES, HITS, PREEMPTED_QUERIES, PREEMPTED_HITS, RESETS)
"""In the order of the text."""


class ManagerMetrics:
    """Sums of what a manager counted, and its usage, as of the last `observe`.

    Only `observe` calls the manager, so `text` and `collect` may run in another thread (KV-ERR-7).
    Raises InvalidArgumentError for a manager without `log_stats`: it counts nothing.
    """

    def __init__(self, manager: KVCacheManager, *, model_name: str, engine: str = "0") -> None:
        if not manager.config.log_stats:
            raise InvalidArgumentError("log_stats", False, "True, so that there are counts")
        self._manager = manager
        self._labels = (model_name, engine)
        self._values = (manager.usage, *(0 for _ in FAMILIES[1:]))

    def observe(self) -> PrefixCacheStats:
        """Take and return the manager's counters: reading clears them (KV-STAT-3).

        Call it where the manager is called, for example after each step.
        """
        stats = self._manager.make_prefix_cache_stats() or PrefixCacheStats()
        added = (
            stats.queries_tokens,
            stats.hits_tokens,
            stats.preempted_queries_tokens,
            stats.preempted_hits_tokens,
            int(stats.reset),
        )
        sums = (old + new for old, new in zip(self._values[1:], added, strict=True))
        # One assignment: a reader in another thread has all of one moment.
        self._values = (self._manager.usage, *sums)
        return stats

    def text(self) -> str:
        """Return the counters in Prometheus' text format, version 0.0.4."""
        pairs = sorted(zip(LABELS, self._labels, strict=True))
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
        lines = []
        for family, value in zip(FAMILIES, self._values, strict=True):
            kind = "counter" if family.is_counter else "gauge"
            lines += [
                f"# HELP {family.sample} {family.meaning}",
                f"# TYPE {family.sample} {kind}",
                f"{family.sample}{{{labels}}} {float(value)}",
            ]
        return "\n".join(lines) + "\n"

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a registry of `prometheus_client`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family, value in zip(FAMILIES, self._values, strict=True):
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            metric = kind(family.name, family.meaning, labels=LABELS)
            metric.add_metric(self._labels, value)
            yield metric


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
