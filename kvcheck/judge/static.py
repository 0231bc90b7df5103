"""The static tier: recorded walks along every edge of small graphs, followed by a subject.

Deterministic, and compared with nothing but what stands in the records (`kvcheck.explore.vectors`).
Level safety, at which every answer is the subject's own, leaves them out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvcheck.judge.following import Follower
from kvcheck.judge.sides import Sides
from kvcheck.play import fit
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, violation_of
from kvcheck.play.watchdog import Hang, time_limit
from kvcheck.records.manifest import Manifest, shipped_sets, shipped_vectors
from kvcheck.tasks import Call, Workers, in_order
from kvspec import requirements
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Capabilities, Feature, Implementation
from kvspec.policy import Policy
from kvspec.record import Header, Operation
from kvspec.record_file import read_whole_trace

FAILURES_OF_A_SET = 2
"""After so many walks that a subject does not follow, the rest of the set is not shown to it."""

POLICIES_OF_OTHERS = (
    "capacity_counts_null_block",
    "chunk_must_align",
    "default_retention",
    "exact_block_ids",
    "extra_keys",
    "lookups_counted",
)
"""Policies that say nothing about what is recorded: planning, refused configurations, levels,
retention and counting, which records name, and extra keys, which no request of the vectors has."""


@dataclass(frozen=True)
class StaticCount:
    """What was followed. `left_out`: sets, each with what the subject lacks for it."""

    sets: int = 0
    walks: int = 0
    operations: int = 0
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def plus(self, operations: int) -> StaticCount:
        """With one more walk of so many operations."""
        return replace(self, walks=self.walks + 1, operations=self.operations + operations)

    def to_json(self) -> dict[str, Any]:
        """For reports, and to go on later."""
        left_out = {name: list(lacks) for name, lacks in self.left_out.items()}
        counts = {"sets": self.sets, "walks": self.walks, "operations": self.operations}
        return {**counts, "left_out": left_out}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StaticCount:
        """The other way; nothing of an earlier version."""
        left_out = {name: tuple(lacks) for name, lacks in value.get("left_out", {}).items()}
        return cls(**{**value, "left_out": left_out})


@dataclass(frozen=True)
class Recorded:
    """One walk of a set, read."""

    manifest: Manifest
    number: int
    header: Header
    operations: tuple[Operation, ...]

    @property
    def name(self) -> str:
        """As reports name it."""
        return f"static vectors {self.manifest.name!r}, walk {self.number}"


def read_walk(folder: Path, manifest: Manifest, number: int) -> Recorded:
    """Walk `number`, from 1 on. Raises FormatError."""
    walk = manifest.walks[number - 1]
    # Recorded under the rules themselves, not under the profile of records that name no policy.
    header, operations = read_whole_trace(folder / walk.file, policy=Policy())
    return Recorded(manifest, number, header, operations)


def find_walk(name: str, number: int) -> Recorded:
    """A walk of a shipped set. Raises InvalidArgumentError where there is none."""
    for folder, manifest in shipped_sets():
        if manifest.name == name and 0 < number <= len(manifest.walks):
            return read_walk(folder, manifest, number)
    raise InvalidArgumentError("walk", f"{name}/{number}", "a walk of a shipped set of vectors")


def lacking(manifest: Manifest, can: Capabilities, policy: Policy, level: Level) -> list[str]:
    """What a set needs that the subject does not have, or does otherwise on purpose."""
    config = fit.without_queues(manifest.config, can.features)
    found = requirements.lacking(config, can, hashes_matter=True)
    needed = set(manifest.features) - {feature.value for feature in can.features}
    names = {Feature.SNAPSHOT.value} - {feature.value for feature in can.features}
    if level is Level.IDENTITY or Feature.EVICTION_BY_ID in manifest.features:
        needed |= names  # the whole state; or which block it is that is evicted
    return list(dict.fromkeys([*found, *sorted(needed), *_other_policies(policy)]))


def _other_policies(policy: Policy) -> Iterator[str]:
    """Choices under which other answers are right."""
    for member in fields(Policy):
        if member.name not in POLICIES_OF_OTHERS:
            value = getattr(policy, member.name)
            if value != getattr(Policy(), member.name):
                yield f"records with {member.name}={value!r}"


class StaticTier:
    """All shipped sets on one subject. `about`: the rules of the sets that it followed whole."""

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.count = StaticCount()
        self.about: set[str] = set()
        self.failed: Counter[str] = Counter()  # walks, by their set
        self.given_up: set[str] = set()

    def run(
        self,
        is_wanted: Callable[[Sequence[str]], bool],
        tell: Callable[[float, str], None],
        workers: Workers | None = None,
    ) -> Iterator[tuple[Recorded, Parting, float]]:
        """Where the subject parts from a walk, and after how many seconds; few of each set.

        Nothing at level safety, or if the budget has no static vectors.
        """
        options, can = self.sides.options, self.sides.subject.capabilities
        if not options.budget.static or options.level is Level.SAFETY:
            return
        sets: dict[str, tuple[Path, Manifest]] = {}
        for folder, manifest in shipped_sets():
            lacks = lacking(manifest, can, options.policy, options.level)
            if is_wanted(manifest.rules) and lacks:
                self._leave_out(manifest, tuple(lacks))
            elif is_wanted(manifest.rules):
                sets[manifest.name] = folder, manifest
        for name, number, found, seconds in in_order(workers, self._calls(sets.values(), tell)):
            folder, manifest = sets[name]
            # A worker may have begun a walk before the set was given up.
            if name not in self.given_up:
                self._note(manifest, number, found)
                if isinstance(found, Parting):
                    yield read_walk(folder, manifest, number), found, seconds

    def _calls(
        self, sets: Collection[tuple[Path, Manifest]], tell: Callable[[float, str], None]
    ) -> Iterator[Call]:
        total, done = sum(manifest.operations for _, manifest in sets), 0
        for _, manifest in sets:
            for number, walk in enumerate(manifest.walks, 1):
                if manifest.name not in self.given_up:
                    tell(done / total, f"{manifest.name}, walk {number} of {len(manifest.walks)}")
                    yield _followed, (self.sides, manifest, number)
                done += walk.operations

    def _note(self, manifest: Manifest, number: int, found: Parting | LeftOut | None) -> None:
        """What came of a walk."""
        self.count = replace(self.count, sets=self.count.sets + (number == 1))
        if isinstance(found, LeftOut):
            self._leave_out(manifest, (str(found),))
            self.count = replace(self.count, sets=self.count.sets - 1)
            self.given_up.add(manifest.name)
            return
        walked = manifest.walks[number - 1].operations if found is None else found.num_operations
        self.count = self.count.plus(walked)
        self.failed[manifest.name] += found is not None
        if self.failed[manifest.name] == FAILURES_OF_A_SET:
            self.given_up.add(manifest.name)
        if number == len(manifest.walks) and not self.failed[manifest.name]:
            self.about.update(manifest.rules)

    def _leave_out(self, manifest: Manifest, lacks: tuple[str, ...]) -> None:
        left_out = {**self.count.left_out, manifest.name: lacks}
        self.count = replace(self.count, left_out=left_out)


def _followed(
    sides: Sides, manifest: Manifest, number: int
) -> tuple[str, int, Parting | LeftOut | None, float]:
    """Set and number of a walk, what came of it, and in how many seconds."""
    walk = read_walk(shipped_vectors() / manifest.name, manifest, number)
    begin = time.monotonic()
    found: Parting | LeftOut | None
    try:
        found = parting_from(walk, sides.subject, sides.options.level)
    except LeftOut as reason:
        found = reason
    return manifest.name, number, found, time.monotonic() - begin


@dataclass(frozen=True)
class Parting:
    """Where a subject parts from a record: what is broken, after how many of its operations."""

    violation: Violation
    num_operations: int


def walk_violation(
    name: str, number: int, subject: Implementation, level: Level
) -> Violation | None:
    """What a subject breaks in a walk of a shipped set; None if it follows it to its end."""
    parting = parting_from(find_walk(name, number), subject, level)
    return None if parting is None else parting.violation


def parting_from(walk: Recorded, subject: Implementation, level: Level) -> Parting | None:
    """The first difference from the record, at the operation that shows it. Raises LeftOut."""
    found = followed(walk, subject, level, every_state=False)
    if found is None:
        return None
    # Once more, looking after every operation: which one was it?
    return followed(walk, subject, level, every_state=True) or found


def followed(
    walk: Recorded, subject: Implementation, level: Level, *, every_state: bool
) -> Parting | None:
    """Follow a walk; where the subject parts from it, or None."""
    follower: Follower | None = None
    config = fit.without_queues(walk.header.config, subject.capabilities.features)
    program = Program(config, (), name=walk.name, rules=walk.manifest.rules)
    try:
        with time_limit(subject):
            follower = Follower(subject, walk.header, exact_ids=level is Level.IDENTITY)
            follower.follow(walk.operations, every_state=every_state)
    except LeftOut:
        raise
    # Whatever a foreign implementation does is a verdict, as for programs.
    except (Exception, SystemExit, Hang) as found:
        asked = () if follower is None else tuple(follower.asked)
        violation = violation_of(found, program, asked)
        place = (walk.manifest.name, walk.number)
        num_operations = 0 if follower is None else follower.num_operations
        return Parting(replace(violation, walk=place), num_operations)
    return None
