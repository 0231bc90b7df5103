"""Each broken manager is caught, and its record shows the failure again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kvcheck
from kvcheck.records.trace import TraceResult, replay_trace
from kvcheck.tools.view import load
from kvref.implementation import ReferenceImplementation
from kvspec.errors import MonitorViolation
from kvspec.record import Header, Operation
from kvspec.record_file import read_header, read_trace
from kvspec.request import RequestInput
from tests.commands import kvspec
from tests.mistakes import mistaken
from tests.monitor.twins import TWINS, Engine, Twin, config

REFERENCE = ReferenceImplementation()
CASES = tuple(
    pytest.param(twin, every, id=f"{twin.name}, every {every}")
    for twin in TWINS
    for every in twin.rates
)


def caught(twin: Twin, folder: Path, every: int, num_blocks: int, history: int) -> MonitorViolation:
    implementation = twin.make()
    manager = implementation.create(config(num_blocks), check_invariants=False)
    monitor = kvcheck.monitor(manager, every, record=folder, history=history)
    engine = Engine(implementation, monitor)
    with pytest.raises(MonitorViolation) as found:
        engine.run(200)
    assert monitor.report().violation is found.value
    return found.value


def where(result: TraceResult) -> int | None:
    return None if result.mismatch is None else result.mismatch.line - 2


def num_operations(path: Path) -> int:
    return sum(isinstance(line, Operation) for line in read_trace(path))


@pytest.mark.parametrize("history", [30, 10_000], ids=["a ring", "from the start"])
@pytest.mark.parametrize(("twin", "every"), CASES)
def test_a_broken_manager_is_caught_and_its_record_shows_it(
    twin: Twin, every: int, history: int, tmp_path: Path
) -> None:
    violation = caught(twin, tmp_path, every, 10, history)
    assert violation.rule in twin.rules, violation
    record = violation.record
    assert record is not None, violation.hint
    assert record.parent == tmp_path
    assert str(record) in str(violation)
    last = num_operations(record) - 1
    differs_at = where(replay_trace(record, REFERENCE))
    assert differs_at is not None
    if twin.does_harm_at_once and every == 1:
        assert differs_at >= last - 1  # the last call asks what the request holds
    again = replay_trace(record, twin.make())
    assert again.mismatch is None or "InvariantViolation" in again.mismatch.render()


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: str(twin.name))
def test_so_it_is_in_a_pool_whose_records_hold_hashes(twin: Twin, tmp_path: Path) -> None:
    implementation = twin.make()
    manager = implementation.create(config(70), check_invariants=False)
    monitor = kvcheck.monitor(manager, record=tmp_path, history=40)
    engine = Engine(implementation, monitor)
    # Most of the pool is set aside, so that there is as little room as in a small one.
    big = implementation.make_request(monitor, RequestInput("big", range(1000, 1240)))

    def run() -> None:
        monitor.allocate_slots(big, 240)
        engine.run(300)

    with pytest.raises(MonitorViolation) as found:
        run()
    violation = found.value
    assert violation.rule in twin.rules, violation
    assert violation.record is not None, violation.hint
    assert where(replay_trace(violation.record, REFERENCE)) is not None
    again = replay_trace(violation.record, twin.make())
    assert again.mismatch is None or "InvariantViolation" in again.mismatch.render()


def test_a_stale_hit_is_seen_by_its_content_alone(tmp_path: Path) -> None:
    implementation = mistaken("KeepsKeysOfTakenBlocks")
    settings = replace(config(), enable_events=False)
    manager = implementation.create(settings, check_invariants=False)
    engine = Engine(implementation, kvcheck.monitor(manager, 10_000, record=tmp_path))
    with pytest.raises(MonitorViolation, match="hit of r") as found:
        engine.run(200)
    assert found.value.rule == "KV-HASH-1"
    assert found.value.invariant == "content_is_where_it_is_claimed"


def test_the_same_engine_finds_nothing_wrong_with_the_reference(tmp_path: Path) -> None:
    for every in (1, 7):
        manager = REFERENCE.create(config(), check_invariants=False)
        with kvcheck.monitor(manager, every, record=tmp_path, history=30) as monitor:
            Engine(REFERENCE, monitor).run(300)
        report = monitor.report()
        assert report.violation is None
        assert report.operations // every <= report.audits
    assert not list(tmp_path.iterdir())


def test_a_ring_starts_from_a_state_and_a_short_run_from_the_beginning(tmp_path: Path) -> None:
    by_name = {twin.name: twin for twin in TWINS}
    early = caught(by_name["LeaksUnhashedBlocks"], tmp_path, 1, 10, 10_000).record
    assert early is not None
    header = read_header(early)
    assert isinstance(header, Header)
    assert (header.start, header.version) == (None, 4)  # the engine withdraws
    late = caught(by_name["ReturnedUpToTheWrongOne"], tmp_path, 1, 10, 2).record
    assert late is not None
    header = read_header(late)
    assert isinstance(header, Header)
    assert header.start is not None
    assert num_operations(late) < 20
    assert early != late


def test_the_command_replays_the_record(tmp_path: Path) -> None:
    violation = caught(TWINS[0], tmp_path, 1, 10, 50)

    replayed = kvspec(tmp_path, "golden", str(violation.record), "--impl", "kvref")
    assert replayed.returncode == 1, replayed.stderr
    assert "expected" in replayed.stdout
    assert load(violation.record or tmp_path).frames
