"""A run over several configurations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.fit import lacks
from kvcheck.explore.search import Counts, Exploration, Pair, Violation, explore
from kvcheck.tasks import Workers


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
