"""Each broken manager is caught, and its record shows the failure again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import kvcheck
from kvcheck.records.trace import TraceResult, replay_trace
from kvcheck.tools.view import load
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import MonitorViolation
from kvspec.interface import Implementation, KVCacheManager
from kvspec.record import Header, Operation
from kvspec.record_file import read_header, read_trace
from kvspec.request import Request, RequestInput, RequestStatus
from tests.commands import kvspec
from tests.contract.builders import make_config
from tests.mistakes import mistaken


def config(num_blocks: int = 10, **members: Any) -> ManagerConfig:
    watched = {"max_model_len_tokens": 4 * num_blocks, "enable_events": True, "log_stats": True}
    return make_config(num_blocks, **watched | members)


@dataclass(frozen=True)
class Twin:
    """A mistake: as which rules it is found, and at which rates of audits.

    `does_harm_at_once`: what departs from the rules and what is unsafe are one call.
    """

    name: str
    rules: frozenset[str]
    rates: tuple[int, ...] = (1, 20, 10_000)
    does_harm_at_once: bool = True

    def make(self) -> Implementation:
        made: Implementation = mistaken(self.name)
        return made


TWINS = (
    Twin("LeaksUnhashedBlocks", frozenset({"KV-POOL-15"})),
    Twin("GivesABlockTwice", frozenset({"KV-POOL-3", "KV-POOL-15"})),
    # Which events, or a look at the state, may show first.
    Twin(
        "KeepsKeysOfTakenBlocks",
        frozenset({"KV-HASH-1", "KV-EVT-7", "KV-POOL-17"}),
        does_harm_at_once=False,
    ),
    Twin("AnswersAnotherHit", frozenset({"KV-HASH-1"})),
    Twin("RefusalTakesABlock", frozenset({"KV-POOL-15", "KV-POOL-16"})),
    Twin("RefusalEvicts", frozenset({"KV-MGR-6"}), rates=(1,)),
    Twin("LosesEvents", frozenset({"KV-EVT-7"}), rates=(1, 20)),
    Twin("ReturnedUpToTheWrongOne", frozenset({"KV-ERR-2", "KV-POOL-15"})),
    Twin("ListsADifferentBlock", frozenset({"KV-GRP-1", "KV-POOL-3"})),
)


class Engine:
    """A small engine: requests with equal prefixes arrive, run, are preempted and end.

    Everything follows from `step`, so that two runs are equal.
    """

    def __init__(self, implementation: Implementation, manager: KVCacheManager) -> None:
        self.implementation = implementation
        self.manager = manager
        self.running: list[Request] = []
        self.number = 0

    def run(self, steps: int) -> None:
        """Run the steps: each admits one request, and decodes a token of all running ones."""
        for step in range(steps):
            self.manager.new_step_starts()
            for request in list(self.running):
                if request in self.running:
                    self.decode(request, step)
            self.admit(step)
            self.ask(step)
            self.manager.take_events()
            self.manager.make_prefix_cache_stats()

    def admit(self, step: int) -> None:
        family = 0 if step % 4 else step
        tokens = [family * 100 + n for n in range(4 + 5 * (step % 3))] + [step, step]
        request = self.implementation.make_request(
            self.manager,
            RequestInput(f"r{self.number}", tokens, cache_salt=None if step % 5 else "s"),
        )
        self.number += 1
        hit = self.manager.get_computed_blocks(request)
        granted = self.manager.allocate_slots(
            request,
            len(tokens) - hit.hit_length_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
        )
        if granted is not None:
            request.num_computed_tokens = len(tokens)
            request.status = RequestStatus.RUNNING
            self.running.append(request)

    def decode(self, request: Request, step: int) -> None:
        self.implementation.append_tokens(self.manager, request, [step])
        if request.num_tokens > 20 or self.manager.allocate_slots(request, 1) is None:
            self.end(request, step)
        else:
            if step % 9 == 4:  # the step does not run, and is planned again
                self.manager.withdraw(request, request.num_computed_tokens)
                self.manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1

    def end(self, request: Request, step: int) -> None:
        self.running.remove(request)
        if step % 2:
            self.manager.free(request)
            return
        popped = self.manager.pop_blocks_for_free(request)[::-1]
        if popped:
            try:
                self.manager.free_blocks([*popped, popped[0]])
            except ValueError:
                self.manager.free_blocks(popped)

    def ask(self, step: int) -> None:
        if self.running:
            request = self.running[step % len(self.running)]
            self.manager.get_blocks(request)
            self.manager.get_num_common_prefix_blocks(request)
        if step % 7 == 3:
            last = self.manager.config.kv_cache.num_blocks - 1
            self.manager.evict_blocks([last - step % 3])
            self.manager.reset_prefix_cache()
        self.manager.take_new_block_ids()


REFERENCE = ReferenceImplementation()
CASES = (
    *(
        pytest.param(twin, every, 10, history, id=f"{twin.name}, every {every}, {what}")
        for twin in TWINS
        for every in twin.rates
        for history, what in ((30, "a ring"), (10_000, "from the start"))
    ),
    *(pytest.param(twin, 1, 70, 40, id=f"{twin.name}, hashes of states") for twin in TWINS),
)


def serve(implementation: Implementation, monitor: KVCacheManager, num_blocks: int) -> None:
    """Run the engine; of a large pool most is set aside, so that there is as little room."""
    if num_blocks > 64:
        big = implementation.make_request(monitor, RequestInput("big", range(1000, 1240)))
        monitor.allocate_slots(big, 240)
    Engine(implementation, monitor).run(300)


def caught(twin: Twin, folder: Path, every: int, num_blocks: int, history: int) -> MonitorViolation:
    implementation = twin.make()
    manager = implementation.create(config(num_blocks), check_invariants=False)
    monitor = kvcheck.monitor(manager, every, record=folder, history=history)
    with pytest.raises(MonitorViolation) as found:
        serve(implementation, monitor, num_blocks)
    assert monitor.report().violation is found.value
    return found.value


def where(result: TraceResult) -> int | None:
    return None if result.mismatch is None else result.mismatch.line - 2


def num_operations(path: Path) -> int:
    return sum(isinstance(line, Operation) for line in read_trace(path))


@pytest.mark.parametrize(("twin", "every", "num_blocks", "history"), CASES)
def test_a_broken_manager_is_caught_and_its_record_shows_it(
    twin: Twin, every: int, num_blocks: int, history: int, tmp_path: Path
) -> None:
    violation = caught(twin, tmp_path, every, num_blocks, history)
    assert violation.rule in twin.rules, violation
    record = violation.record
    assert record is not None, violation.hint
    assert record.parent == tmp_path
    assert str(record) in str(violation)
    last = num_operations(record) - 1
    differs_at = where(replay_trace(record, REFERENCE))
    assert differs_at is not None
    if twin.does_harm_at_once and every == 1 and num_blocks == 10:
        assert differs_at >= last - 1  # the last call asks what the request holds
    again = replay_trace(record, twin.make())
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
