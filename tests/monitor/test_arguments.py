"""The monitor's arguments, page and memory, and that right programs raise no alarm."""

from __future__ import annotations

import copy
import gc
import os
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import kvcheck
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvcheck.watch import Monitor
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.record import Header
from kvspec.record_file import read_header
from kvspec.request import RequestInput, RequestStatus
from tests.commands import kvspec, python
from tests.mistakes import POOLS, mistaken
from tests.monitor.test_monitor import request, watched
from tests.monitor.test_twins import Engine, config
from tests.programs import SCENARIOS
from tests.source import ROOT

REFERENCE = ReferenceImplementation()


def test_copies_are_not_watched() -> None:
    monitor = kvcheck.monitor(REFERENCE.create(config()))
    clone = REFERENCE.clone(monitor)
    assert not isinstance(clone, Monitor)
    request = REFERENCE.make_request(monitor, RequestInput("r", range(6)))
    monitor.allocate_slots(request, 6)
    assert clone.num_free_blocks == 9
    assert not isinstance(copy.deepcopy(monitor), Monitor)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"every": 1.5}, "every"),
        ({"history": 0}, "history"),
        ({"on_violation": "log"}, "on_violation"),
        ({"manager": object()}, "manager"),
    ],
)
def test_arguments_out_of_their_domain_are_refused(arguments: dict[str, Any], field: str) -> None:
    given = {"manager": REFERENCE.create(config()), **arguments}
    with pytest.raises(InvalidArgumentError) as found:
        kvcheck.monitor(**given)
    assert found.value.field == field


def test_importing_the_package_does_not_import_it() -> None:
    code = (
        "import sys, kvcheck; before = 'kvcheck.watch' in sys.modules; kvcheck.monitor;"
        " print(before, sorted({'hypothesis', 'click', 'rich', 'kvref'} & set(sys.modules)))"
    )
    done = python("-c", code, check=True)
    assert done.stdout == "False []\n"
    with pytest.raises(AttributeError, match="no attribute 'observe'"):
        _ = kvcheck.observe  # type: ignore[attr-defined]  # that is the point


TEXT = (ROOT / "docs/monitor.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "KVSPEC_MONITOR_DIR": str(tmp_path)}
    done = python("-c", EXAMPLE, folder=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", EXAMPLE, re.MULTILINE)
    record = tmp_path / "kvspec-violation-KV-POOL-15.jsonl"
    (command,) = re.findall(r"^\$ kvspec (.*)$", TEXT, re.MULTILINE)
    assert record.name in command
    replay = kvspec(tmp_path, *command.split())
    assert replay.returncode == 1, replay.stderr


@dataclass(frozen=True)
class Held:
    measured: int
    estimated: int


def most_held(steps: tuple[int, int], every: int, history: int) -> tuple[Held, Held]:
    """Return the most memory held during the first of these steps, and during the second."""
    monitor: Monitor = kvcheck.monitor(
        REFERENCE.create(config(), check_invariants=False), every, history=history
    )
    engine = Engine(REFERENCE, monitor)
    engine.run(2)  # what is imported and cached once is not the monitor's
    tracemalloc.start()
    try:
        found = []
        for count in steps:
            measured = 0
            for _ in range(count // 5):
                engine.run(5)
                gc.collect()  # unreachable objects are not held, though not yet freed
                measured = max(measured, tracemalloc.get_traced_memory()[0])
            found.append(Held(measured, monitor.report().peak_memory_bytes))
    finally:
        tracemalloc.stop()
    assert monitor.report().violation is None
    return found[0], found[1]


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.deep)])
def test_a_longer_run_holds_no_more(every: int) -> None:
    early, late = most_held((60, 100), every, history=40)
    assert late.measured < 1.25 * early.measured
    assert late.estimated < 1.25 * early.estimated


def test_the_measure_sees_what_grows() -> None:
    early, late = most_held((20, 60), 10, history=1_000_000)
    assert late.measured > 2 * early.measured
    assert late.estimated > 2 * early.estimated


@pytest.mark.deep
def test_the_estimate_is_of_the_right_size() -> None:
    _, late = most_held((20, 30), 1, history=100)
    assert late.measured / 3 < late.estimated < late.measured * 3


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
