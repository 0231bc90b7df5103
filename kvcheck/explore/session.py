"""A run over several configurations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from kvcheck.explore.bounds import Call, Configuration
from kvcheck.explore.search import Counts, Exploration, Pair, Violation, explore
from kvcheck.tasks import Workers
from kvspec import requirements
from kvspec.interface import Capabilities, Feature


@dataclass(frozen=True)
class Result:
    """One configuration: its counts, and whether they are complete."""

    configuration: Configuration
    counts: Counts
    seconds: float
    is_complete: bool

    @property
    def as_recorded(self) -> bool | None:
        """Whether the counts equal those shipped with kvspec; None without any."""
        recorded = recorded_counts().get(self.configuration.name)
        if not self.is_complete or recorded is None or not self.configuration.up_to_names:
            return None
        return self.counts == recorded

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.configuration.name,
            "up_to_names": self.configuration.up_to_names,
            **self.counts.to_json(),
            "complete": self.is_complete,
            "as_recorded": self.as_recorded,
            "seconds": round(self.seconds, 3),
        }


@dataclass
class Report:
    """The result of a run. `left_out`: configurations, each with what the subject lacks for it."""

    results: list[Result] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    interrupted: bool = False


def run(
    pair: Pair,
    configurations: Sequence[Configuration],
    *,
    workers: Workers | None = None,
    max_edges: int | None = None,
    heard: Callable[[Exploration], None] = lambda exploration: None,
) -> Report:
    """Explore all configurations; Ctrl-C ends the run with a report. `heard`: its progress."""
    report = Report()
    can = (pair.subject or pair.oracle).capabilities
    for configuration in configurations:
        if lacking := lacks(configuration, can):
            report.left_out[configuration.name] = tuple(lacking)
            continue
        exploration, began = Exploration(configuration), time.monotonic()
        try:
            explore(exploration, pair, workers=workers, max_edges=max_edges, heard=heard)
        except KeyboardInterrupt:
            report.interrupted = True
        seconds = time.monotonic() - began
        complete = exploration.is_complete
        report.results.append(Result(configuration, exploration.counts, seconds, complete))
        if exploration.violation is not None:
            report.violations.append(exploration.violation)
        if report.interrupted:
            break
    return report


def recorded_counts() -> Mapping[str, Counts]:
    """Return the counts of each configuration, as found with the reference of this version."""
    text = files("kvcheck").joinpath("data/explore.json").read_text(encoding="utf-8")
    return {name: Counts.from_json(value) for name, value in json.loads(text).items()}


FEATURES_OF_CALL: Mapping[Call, tuple[Feature, ...]] = {
    Call.POP: (Feature.DEFERRED_FREE,),
    Call.EVICT: (Feature.EVICTION_BY_ID,),
    Call.RESET: (Feature.RESET,),
    Call.SKIP: (Feature.SKIPPED_REMOVAL,),
    Call.CACHE: (Feature.DELAYED_CACHING,),
    Call.PARTIAL: (Feature.PARTIAL_BLOCKS,),
    Call.ASK: (Feature.COMMON_PREFIX, Feature.UNHASHED_BLOCKS, Feature.NEED),
    Call.ILLEGAL: (Feature.DEFERRED_FREE, Feature.EVICTION_BY_ID, Feature.DELAYED_CACHING),
}
"""Features beyond the base that a call needs."""


def lacks(configuration: Configuration, can: Capabilities) -> list[str]:
    found = requirements.lacking(configuration.config, can, hashes_matter=True)
    needed = {feature for call in configuration.calls for feature in FEATURES_OF_CALL.get(call, ())}
    needed |= _features_of_options(configuration)
    # Every move needs them.
    needed |= {Feature.SNAPSHOT, Feature.NEW_BLOCK_IDS}
    return sorted({*found, *(feature.value for feature in needed - can.features)})


def _features_of_options(configuration: Configuration) -> set[Feature]:
    admissions, computations = configuration.admissions, configuration.computations
    drafting = any(each.lookahead_tokens for each in admissions)
    drafting |= any(each.lookahead_tokens or each.num_drafts for each in computations)
    drafting |= any(each.num_lookahead_tokens for each in configuration.steps)
    delayed = any(each.delayed or each.load_later for each in admissions)
    delayed |= any(each.delayed for each in computations)
    options = {
        Feature.DRAFTING: drafting,
        Feature.EXTERNAL_TOKENS: any(each.external_tokens for each in admissions),
        Feature.DELAYED_CACHING: delayed,
        Feature.ADMISSION: any(each.must_fit or each.reserved_blocks for each in admissions)
        or any(each.reserved_blocks for each in configuration.steps),
        Feature.HITS_PER_GROUP: any(each.own_hits for each in admissions)
        or (Call.ASK in configuration.calls and len(configuration.config.kv_cache.groups) > 1),
        Feature.UNEQUAL_HITS: any(each.own_hits for each in admissions),
    }
    return {feature for feature, wanted in options.items() if wanted}
