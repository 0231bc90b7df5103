"""Right programs raise no alarm: those of the suite, and random ones, under a monitor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import kvcheck
import kvref
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvcheck.watch import Monitor
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.record import Header
from kvspec.record_file import read_header
from kvspec.request import RequestStatus
from tests.mistakes import POOLS, mistaken
from tests.monitor.test_monitor import request, watched
from tests.monitor.twins import config
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()


class Monitored:
    """kvref, or one with a mistake: every manager has a monitor; the last one's is `monitor`."""

    monitor: Monitor

    def __init__(self, every: int, folder: Path, inner: Implementation = REFERENCE) -> None:
        self.every, self.folder, self.inner = every, folder, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager = self.inner.create(config, **options | {"check_invariants": False})
        self.monitor = kvcheck.monitor(
            manager, self.every, history=20, on_violation=lambda violation: None, record=self.folder
        )
        return self.monitor


@pytest.mark.parametrize("every", [1, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("program", SCENARIOS, ids=lambda program: str(program.name))
def test_no_directed_program_raises_an_alarm(program: Program, every: int, tmp_path: Path) -> None:
    subject = Monitored(every, tmp_path)
    assert first_violation(program, subject, Level.SAFETY) is None
    report = subject.monitor.report()
    assert report.violation is None
    assert report.operations > 0


def test_no_random_program_raises_an_alarm(tmp_path: Path) -> None:
    for program in random_programs(1, 0, 40):
        subject = Monitored(1, tmp_path)
        first_violation(program, subject, Level.SAFETY)
        assert subject.monitor.report().violation is None, program


def test_no_program_of_what_came_later_raises_an_alarm(tmp_path: Path) -> None:
    inside = islice(inside_programs(1, 0, 40), 24)
    drawn = (each for batch in count() for each in random_programs(1, batch, 40))
    rswa = islice((each for each in drawn if has_rswa(each.config)), 4)
    for program in (*inside, *rswa):
        subject = Monitored(1, tmp_path)
        first_violation(program, subject, Level.SAFETY)
        assert subject.monitor.report().violation is None, program


def has_rswa(config: ManagerConfig) -> bool:
    return any(spec.rswa_window for spec in config.managed_specs)


# Order of eviction is a policy, which safety says nothing of.
HARMLESS = frozenset(
    {"TakesFromTheBack", "HashedBlocksToTheFront", "UnhashedRunReversed", "EvictionFreesTheBlock"}
)


@pytest.mark.parametrize("pool", POOLS)
def test_the_same_programs_raise_one_for_a_broken_pool(pool: str, tmp_path: Path) -> None:
    assert any(map(alarmed(pool, tmp_path), SCENARIOS)) is (pool not in HARMLESS)


def alarmed(pool: str, folder: Path) -> Callable[[Program], bool]:
    broken = mistaken(pool)

    def inner(program: Program) -> bool:
        subject = Monitored(1, folder, broken)
        first_violation(program, subject, Level.SAFETY)
        return subject.monitor.report().violation is not None

    return inner


RECORDS = tuple(
    pytest.param(path, id=path.stem)
    for path in sorted(shipped_records().rglob("*.jsonl"))
    if isinstance(header := read_header(path), Header) and header.raises is None
)


@pytest.mark.parametrize("path", RECORDS)
def test_shipped_records_replay_under_a_monitor(path: Path, tmp_path: Path) -> None:
    subject = Monitored(1, tmp_path)
    result = replay_trace(path, subject)
    assert result.mismatch is None, result.mismatch.render()
    assert subject.monitor.report().violation is None


def test_a_refused_load_of_a_running_request_brought_nothing() -> None:
    monitor = watched(config(4))
    r = request(monitor, 12)
    assert monitor.allocate_slots(r, 4) is not None
    r.num_computed_tokens, r.status = 4, RequestStatus.RUNNING
    other = request(monitor, 8, "other")
    assert monitor.allocate_slots(other, 8) is not None
    assert monitor.allocate_slots(r, 4, num_external_computed_tokens=4) is None
    assert monitor.report().violation is None
