"""Counters of a running engine beside a replay's, from vLLM's metrics in Prometheus' text form.

Needs prometheus_client (extra `metrics`), imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from kvcheck.tools.replay.trace import ESTIMATED, NO_OUTPUTS
from kvspec.errors import FormatError
from kvspec.metrics import HITS, QUERIES

PREEMPTIONS = "vllm:num_preemptions"
POOL = "vllm:cache_config_info"
SECONDS = 10.0
"""After which an engine that sends nothing counts as unreachable."""
NEAR = 0.01
"""Share by which tokens looked up may differ without being named as a reason."""


@dataclass(frozen=True)
class Live:
    """Counters of an engine, summed over its `engines`, and the pool of one of them.

    `source`: address or file. `num_blocks` and `block_size` are None where it doesn't show them.
    `is_between`: it's the difference of two readings.
    """

    source: str
    tokens_queried: int
    tokens_hit: int
    preemptions: int
    engines: int
    num_blocks: int | None
    block_size: int | None
    caches: bool
    is_between: bool = False

    def since(self, before: Live) -> Live:
        """Return the counts since an earlier reading. Raises FormatError if one has shrunk."""
        counts = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("tokens_queried", "tokens_hit", "preemptions")
        }
        if min(counts.values()) < 0:
            raise FormatError(
                self.source, None, None, f"a counter is lower than in {before.source}"
            )
        return Live(**{**asdict(self), **counts, "is_between": True})


def read_live(source: str) -> Live:
    """Read the metrics at an address (http:// or https://) or in a file; raises OSError."""
    if source.startswith(("http://", "https://")):
        with urlopen(source, timeout=SECONDS) as answer:
            return live_of(source, answer.read().decode())
    return live_of(source, Path(source).read_text(encoding="utf-8"))


def live_of(source: str, text: str) -> Live:
    """Read counters and pool from the text. Raises FormatError if there are no look-ups in it."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    pools: list[Mapping[str, str]] = []
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                sums[name] = sums.get(name, 0) + sample.value
                if name == POOL:
                    pools.append(sample.labels)
    except ValueError as error:
        raise FormatError(source, None, None, f"no metrics of Prometheus: {error}") from error
    if QUERIES.name not in sums or HITS.name not in sums:
        problem = f"has no {QUERIES.sample} and {HITS.sample}, as vLLM's metrics have"
        raise FormatError(source, None, None, problem)
    pool = pools[0] if pools else {}
    sizes = {name: int(text) for name, text in pool.items() if text.isdecimal()}
    return Live(
        source=source,
        tokens_queried=int(sums[QUERIES.name]),
        tokens_hit=int(sums[HITS.name]),
        preemptions=int(sums.get(PREEMPTIONS, 0)),
        engines=max(1, len(pools)),
        num_blocks=sizes.get("num_gpu_blocks"),
        block_size=sizes.get("block_size"),
        caches=pool.get("enable_prefix_caching", "True") != "False",
    )


def beside(live: Live, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's numbers, and why its hit rate may differ from that of the report."""
    rate = live.tokens_hit / live.tokens_queried if live.tokens_queried else 0.0
    return {
        **asdict(live),
        "hit_rate": rate,
        "difference": rate - content["hit_rate"],
        "reasons": list(_reasons(live, content)),
    }


def _reasons(live: Live, content: Mapping[str, Any]) -> Iterator[str]:
    options = content["options"]
    if not live.caches:
        yield "prefix caching is off in the engine"
    if live.block_size not in (None, options["block_size"]):
        yield f"the engine has blocks of another size: --block-size {live.block_size}"
    if live.num_blocks not in (None, options["num_blocks"]):
        yield f"the engine has another number of blocks: --num-blocks {live.num_blocks}"
    rate = live.tokens_hit / max(live.tokens_queried, 1)
    if NO_OUTPUTS in content["notes"] and rate > content["hit_rate"]:
        yield "the engine hits answers of earlier turns; here they are misses"
    if live.engines > 1:
        yield f"{live.engines} engines share the requests, each with a pool of its own"
    queried = content["tokens_queried"]
    if abs(live.tokens_queried - queried) > NEAR * queried:
        change = live.tokens_queried - queried
        estimated = any(note.startswith(ESTIMATED) for note in content["notes"])
        why = f"{ESTIMATED} here, or other requests" if estimated else "other requests"
        twice = "; give --against twice, with the metrics before and after the trace"
        yield (
            f"{abs(change):,} {'more' if change > 0 else 'fewer'} tokens looked up: {why}"
            f"{'' if live.is_between else twice}"
        )
    if live.preemptions != content["preemptions"]:
        yield (
            f"preemptions: {live.preemptions:,}, here {content['preemptions']:,}; requests arrive"
            " at other times; see --arrival, --max-running and --max-tokens-per-step"
        )
