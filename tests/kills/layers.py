"""Kinds of checks, each run on an implementation that makes a mistake.

Each returns the name of the first check that finds something, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any

import kvref
from kvcheck.explore.configurations import configurations
from kvcheck.mistakes import Mistake
from kvcheck.play.difference import WrongAnswer
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvcheck.rules.example import Example
from kvspec.interface import Implementation
from kvspec.record import Header
from kvspec.record_file import read_header
from tests.brute_force.enumeration import Vectors, enumeration_finds, make_vectors
from tests.brute_force.stories import NUM_NAMED, first_stories, history_finds
from tests.explore.managers import explored
from tests.kills.directed import directed_checks, finds, interrupted, plan_checks
from tests.lockstep.production import finds_difference
from tests.planted import report_of

NUM_RANDOM = 300
"""Random programs, or models to plan for."""
MAX_STEPS = 40
PRODUCTION_OPERATIONS = 20_000
MAX_EDGES = 2_000
"""Of each configuration that is explored."""
REFERENCE = kvref.implementation()

MANAGERS, TIERS = frozenset({"manager"}), frozenset({"tier", "tree"})
ALONE = MANAGERS | {"both"}
"""Kinds of mistakes for a layer that compares with none of the twins: their common ones, too."""


@dataclass(frozen=True)
class Layer:
    """A kind of check, and the kinds of mistakes it is about; `prepare`: what all of them share."""

    about: str
    kinds: frozenset[str]
    find: Callable[[Mistake], str | None]
    prepare: Callable[[], Any] = lambda: None

    def is_about(self, mistake: Mistake) -> bool:
        return mistake.kind in self.kinds


def directed(mistake: Mistake) -> str | None:
    """Run checks about its rules, then the others; a mistake in both is also the oracle."""
    checks = directed_checks(mistake.kind)
    own = [check for check in checks if set(mistake.rules) & set(check.rules)]
    others = [check for check in checks if check not in own]
    subject = mistake.make()
    oracle = subject if mistake.kind == "both" else None
    return _first([*own, *others], subject, oracle)


def random(mistake: Mistake) -> str | None:
    """Run random programs beside the reference; for planners, random models."""
    subject = mistake.make()
    if mistake.kind == "planner":
        return _first(plan_checks(NUM_RANDOM), subject)
    for number, program in enumerate(programs(), 1):
        if first_violation(program, subject, Level.IDENTITY, REFERENCE) is not None:
            return f"program {number}"
    return None


def production(mistake: Mistake) -> str | None:
    """Compare with the reference at the sizes of production."""
    return finds_difference(mistake.make(), PRODUCTION_OPERATIONS)


def explore(mistake: Mistake) -> str | None:
    """Explore each small configuration up to a number of edges."""
    subject = mistake.make()
    for configuration in configurations():
        if not configuration.is_deep:
            found = explored(configuration, subject, max_edges=MAX_EDGES)
            if found.violation is not None:
                return configuration.name
    return None


def enumeration(mistake: Mistake) -> str | None:
    """Check hits, and which blocks are worth caching, by brute force."""
    return "enumeration" if enumeration_finds(mistake.make(), questions()) else None


def history(mistake: Mistake) -> str | None:
    """Check results and state over time, by the history of each block.

    Prefer a story with a wrong result to one that only ends in an error: twins end differently.
    """
    subject, ended = mistake.make(), None
    for number, story in enumerate(first_stories(NUM_NAMED)):
        with interrupted():
            found = history_finds(story, subject) or ""
            if found.startswith(WrongAnswer.__name__):
                return f"story {number}"
            if found and ended is None:
                ended = f"story {number}"
    return ended


def traces(mistake: Mistake) -> str | None:
    subject = mistake.make()
    for path in sorted(shipped_records().rglob("*.jsonl")):
        if isinstance(read_header(path), Header) and not replay_trace(path, subject).passed:
            return path.stem
    return None


def _first(
    checks: Sequence[Example], subject: Implementation, oracle: Implementation | None = None
) -> str | None:
    return next((check.name for check in checks if finds(check, subject, oracle)), None)


@cache
def programs() -> tuple[Program, ...]:
    drawn = chain.from_iterable(random_programs(0, batch, MAX_STEPS) for batch in count())
    return tuple(islice(drawn, NUM_RANDOM))


@cache
def questions() -> Vectors:
    """Return look-ups with their hits by enumeration."""
    return make_vectors(num_worlds=300, num_prompts=100)


LAYERS: Mapping[str, Layer] = MappingProxyType(
    {
        "directed": Layer(
            "the directed suite, those about its rules first",
            ALONE | TIERS | {"planner", "steps"},
            directed,
            directed_checks,
        ),
        "lives": Layer(
            "lives of an engine beside a shadow, as `kvspec check --tier` and `--tree` play them",
            TIERS,
            lambda mistake: next(iter(report_of(mistake, fail_fast=True).findings), None),
        ),
        "random": Layer(
            f"{NUM_RANDOM} random programs of up to {MAX_STEPS} steps beside kvref, or as many"
            " random models to plan for",
            MANAGERS | {"planner"},
            random,
            programs,
        ),
        "production": Layer(
            f"programs and whole steps at real sizes, {PRODUCTION_OPERATIONS:,} operations",
            MANAGERS,
            production,
        ),
        "enumeration": Layer(
            "hits and what is cached, by brute force on 300 caches and 100 prompts",
            frozenset({"manager", "both"}),
            enumeration,
            questions,
        ),
        "history": Layer(
            f"what is held, cached, answered and refused on {NUM_NAMED} small schedules, by the"
            " history of each block",
            frozenset({"manager", "both"}),
            history,
            lambda: first_stories(NUM_NAMED),
        ),
        "traces": Layer("the recorded traces that are shipped", ALONE, traces),
        "explore": Layer(f"small configurations, {MAX_EDGES:,} edges each", MANAGERS, explore),
    }
)
"""In the order of the page's columns."""
