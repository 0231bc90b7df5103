"""A run over several configurations, which may stop and resume later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.fit import lacks
from kvcheck.explore.saved import Saved, Unfinished, counts_json, counts_of
from kvcheck.explore.search import Counts, Exploration, Pair, Violation, explore, items_of
from kvcheck.tasks import Workers
from kvspec.errors import KVSpecError

SAVE_SECONDS = 30.0
"""Least seconds between two saved states."""


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
        """Return the result as JSON."""
        return {
            "name": self.configuration.name,
            "up_to_names": self.configuration.up_to_names,
            **counts_json(self.counts),
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


@dataclass
class Session:
    """A run. `heard` receives its progress, `save` what is needed to resume."""

    pair: Pair
    configurations: Sequence[Configuration]
    workers: Workers | None = None
    max_edges: int | None = None
    heard: Callable[[Exploration], None] = lambda exploration: None
    save: Callable[[Saved], None] | None = None

    def __post_init__(self) -> None:
        self.done: dict[str, tuple[Counts, float]] = {}
        self.last_saved = time.monotonic()

    @property
    def about(self) -> dict[str, Any]:
        """Return what must be the same for a run to resume."""
        whole = not all(configuration.up_to_names for configuration in self.configurations)
        return {
            "impl": self.pair.subject_name or self.pair.oracle_name,
            "oracle": self.pair.oracle_name,
            "configurations": [configuration.name for configuration in self.configurations],
            "whole": whole,
        }

    def run(self, saved: Saved | None = None) -> Report:
        """Explore all configurations, from where `saved` was; Ctrl-C ends it with a report."""
        unfinished = None
        if saved is not None:
            if dict(saved.run) != self.about:
                raise KVSpecError(f"the file to go on from is about another run: {saved.run}")
            self.done, unfinished = dict(saved.done), saved.unfinished
        report = Report()
        for configuration in self.configurations:
            if configuration.name in self.done:
                report.results.append(Result(configuration, *self.done[configuration.name], True))
                continue
            if lacking := self._lacks(configuration):
                report.left_out[configuration.name] = tuple(lacking)
                continue
            exploration = Exploration(configuration)
            if unfinished is not None and unfinished.name == configuration.name:
                exploration = self._go_on(configuration, unfinished)
            if not self._one(exploration, report):
                break
        return report

    def _lacks(self, configuration: Configuration) -> list[str]:
        subject = self.pair.subject or self.pair.oracle
        return lacks(configuration, subject.capabilities)

    def _go_on(self, configuration: Configuration, now: Unfinished) -> Exploration:
        level = items_of(configuration, now.graph, now.first, self.pair)
        return Exploration(configuration, now.counts, now.graph, level, seconds=now.seconds)

    def _one(self, exploration: Exploration, report: Report) -> bool:
        """Explore one configuration; return False where the run was interrupted."""
        began = time.monotonic() - exploration.seconds
        mark = Mark.of(exploration) if exploration.level else None

        def heard(now: Exploration) -> None:
            now.seconds = time.monotonic() - began
            self.heard(now)

        def level_ends(now: Exploration) -> None:
            nonlocal mark
            now.seconds = time.monotonic() - began
            mark = Mark.of(now) if now.level else None
            if time.monotonic() - self.last_saved > SAVE_SECONDS:
                self._save(exploration, mark)

        try:
            explore(
                exploration,
                self.pair,
                workers=self.workers,
                max_edges=self.max_edges,
                heard=heard,
                level_ends=level_ends,
            )
        except KeyboardInterrupt:
            report.interrupted = True
        configuration, seconds = exploration.configuration, time.monotonic() - began
        result = Result(configuration, exploration.counts, seconds, exploration.is_complete)
        report.results.append(result)
        if exploration.violation is not None:
            report.violations.append(exploration.violation)
        if exploration.is_complete:
            self.done[configuration.name] = (exploration.counts, seconds)
        self._save(exploration, None if exploration.is_complete else mark)
        return not report.interrupted

    def _save(self, exploration: Exploration, mark: Mark | None) -> None:
        if self.save is None:
            return
        unfinished = None if mark is None else mark.unfinished(exploration)
        self.save(Saved(self.about, self.done, unfinished))
        self.last_saved = time.monotonic()


@dataclass(frozen=True)
class Mark:
    """The beginning of a level: later states are explored again."""

    first: int
    num_states: int
    counts: Counts
    seconds: float

    @classmethod
    def of(cls, exploration: Exploration) -> Mark:
        """Return the mark at the end of a level, with the number of the next one."""
        num_states = len(exploration.graph)
        counts = replace(exploration.counts, states=num_states)
        return cls(exploration.level[0].number, num_states, counts, exploration.seconds)

    def unfinished(self, exploration: Exploration) -> Unfinished:
        """Return the exploration as it was then."""
        graph = exploration.graph.cut(self.num_states)
        name = exploration.configuration.name
        return Unfinished(name, self.counts, graph, self.first, self.seconds)


def recorded_counts() -> Mapping[str, Counts]:
    """Return the counts of each configuration, as found with the reference of this version."""
    text = files("kvcheck").joinpath("data/explore.json").read_text(encoding="utf-8")
    return {name: counts_of(value) for name, value in json.loads(text).items()}
