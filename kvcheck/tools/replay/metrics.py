"""Replays in Prometheus' text format, with vLLM's metric names.

So a dashboard made for an engine shows a replay. Needs prometheus_client (extra `metrics`),
imported when it is used. spec/replay.md defines each name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING

from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import Moment
from kvspec.metrics import HITS, LABELS, QUERIES, USAGE

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

GAUGES: Mapping[str, tuple[str, str]] = {
    USAGE.name: (USAGE.meaning, "usage"),
    "vllm:num_requests_running": ("Requests that run.", "num_running"),
    "vllm:num_requests_waiting": (
        "Requests that wait: preempted, or due by their timestamp.",
        "num_waiting",
    ),
}
"""By name: what it says, and the member of `Moment` with its value."""

COUNTERS: Mapping[str, tuple[str, str]] = {
    QUERIES.name: (QUERIES.meaning, "counts.tokens_queried"),
    HITS.name: (HITS.meaning, "counts.tokens_hit"),
    "vllm:num_preemptions": ("Preemptions.", "counts.preemptions"),
    "vllm:prompt_tokens": (
        "Prompt tokens of admitted requests, hit ones included.",
        "counts.tokens_queried",
    ),
    "vllm:prompt_tokens_cached": ("Prompt tokens that needed no computing.", "counts.tokens_hit"),
    "vllm:generation_tokens": ("Tokens generated.", "counts.tokens_generated"),
    "kvspec:evictions": ("Keys that left the cache.", "counts.evictions"),
    "kvspec:steps": ("Steps of the scheduler.", "counts.steps"),
}
"""The same; in the text each name ends with `_total`."""


class ReplayMetrics:
    """Collects the last figures of each engine of each replay; the model's name is the trace's.

    The engines of a replay are numbered from 0, as vLLM numbers those of a model.
    """

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._moments: dict[str, Sequence[Moment]] = {}

    def show(self, name: str, moments: Sequence[Moment]) -> None:
        """Set the current figures of a replay's engines."""
        self._moments[name] = moments

    def text(self) -> bytes:
        """Return the metrics in text format."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry())

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[int]:
        """Serve HTTP requests for `/metrics` during the block; yields the port (0: any).

        Raises OSError.
        """
        from prometheus_client import start_http_server

        server, thread = start_http_server(port, host, self._registry())
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, for a registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        replays = dict(self._moments)  # the replay continues in another thread
        moments = {
            (name, str(engine)): moment
            for name, engines in replays.items()
            for engine, moment in enumerate(engines)
        }
        for family, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (meaning, member) in table.items():
                metric = family(name, meaning, labels=LABELS)
                for labels, moment in moments.items():
                    metric.add_metric(labels, attrgetter(member)(moment))
                yield metric
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Requests that got all their tokens.",
            labels=(*LABELS, "finished_reason"),
        )
        for labels, moment in moments.items():
            ended.add_metric((*labels, "length"), moment.num_ended)
        yield ended
        config = {
            "block_size": str(self._options.block_size),
            "num_gpu_blocks": str(self._options.num_blocks),
            "enable_prefix_caching": "True",
        }
        pool = GaugeMetricFamily("vllm:cache_config_info", "The pool.", labels=(*config, "engine"))
        for engine in range(max(map(len, replays.values()), default=1)):
            pool.add_metric((*config.values(), str(engine)), 1)
        yield pool
