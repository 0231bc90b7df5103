"""Records of the recorder, of kvfast and of monitors: the reference accepts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvcheck
from kvcheck.cli import main
from kvcheck.play.recorder import Recorder
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.trace import TraceResult, replay_trace
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import Counts
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceError, TraceRecord
from kvcheck.watch import Monitor
from kvcheck.watch.recording import RecordedImplementation
from kvcheck.watch.writing import UnrecordableError
from kvfast._implementation import FastImplementation
from kvref import ReferenceImplementation
from kvspec.batched import StepPlan
from kvspec.config import ManagerConfig
from kvspec.errors import FormatError, InvalidArgumentError, UnsupportedError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.record import Header
from kvspec.record_file import read_header
from kvspec.request import PromptEmbeddings, Request, RequestInput
from kvspec.sequential import batched_of
from tests.cases import every_second
from tests.contract.builders import make_config
from tests.lockstep.builds import build
from tests.programs import SCENARIOS
from tests.records.changed import Tape

BUILDS = ("compiled", "uncompiled")

TRACE = tuple(
    TraceRecord(number, 0, 20 + 7 * (number % 5), 9, (number % 3,)) for number in range(1, 13)
)
"""Twelve short requests; three prefixes are shared."""

CROWDED = ReplayOptions(num_blocks=24, block_size=4, max_tokens_per_step=64)
"""So few blocks that requests are refused and preempted, and keys are evicted."""


def replay(subject: Implementation, options: ReplayOptions = CROWDED) -> Counts:
    driver = Driver(subject, options, TRACE, trace_name="trace", check_invariants=False)
    return driver.run().counts


def recorded_replay(path: Path, subject: Implementation, options: ReplayOptions = CROWDED) -> Path:
    with RecordedImplementation(subject, path) as recorded:
        replay(recorded, options)
    return path


class MonitoredFast(FastImplementation):
    """kvfast, its last manager under `monitor`."""

    monitor: Monitor

    def __init__(self, name: str, history: int) -> None:
        super().__init__(name)
        self.history = history

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager = super().create(config, **options | {"check_invariants": False})
        self.monitor = kvcheck.monitor(manager, history=self.history)
        return self.monitor


REFERENCE = ReferenceImplementation()


@pytest.fixture(params=BUILDS)
def fast(request: pytest.FixtureRequest) -> Implementation:
    return build(request.param)


def accepted(path: Path) -> TraceResult:
    result = replay_trace(path, REFERENCE)
    assert result.mismatch is None, result.mismatch.render()
    return result


def header_of(path: Path) -> Header:
    header = read_header(path)
    assert isinstance(header, Header)
    return header


def test_a_crowded_replay_evicts_and_preempts(fast: Implementation) -> None:
    counts = replay(fast)
    assert counts.evictions > 20
    assert counts.preemptions >= 3
    assert counts.tokens_hit > 50


@pytest.mark.parametrize("num_blocks", [24, 70], ids=["states", "hashes of states"])
def test_a_recorded_replay_is_accepted(
    fast: Implementation, num_blocks: int, tmp_path: Path
) -> None:
    options = ReplayOptions(num_blocks=num_blocks, block_size=4, max_tokens_per_step=64)
    path = recorded_replay(tmp_path / "run.jsonl", fast, options)
    assert accepted(path).compared > 250
    assert header_of(path).is_small is (num_blocks <= 64)
    assert header_of(path).start is None


@pytest.mark.parametrize("history", [50, 10_000], ids=["from a state", "from the start"])
@pytest.mark.parametrize("name", BUILDS)
def test_a_record_of_the_monitor_is_accepted(name: str, history: int, tmp_path: Path) -> None:
    build(name)
    subject = MonitoredFast(name, history)
    replay(subject)
    path = tmp_path / "run.jsonl"
    num_operations = subject.monitor.write_record(path)
    assert accepted(path).compared == num_operations >= min(history, 300)
    assert (header_of(path).start is not None) is (history == 50)
    assert subject.monitor.report().violation is None


@pytest.mark.parametrize("num_blocks", [24, 70])
def test_a_monitor_writes_what_it_saw_also_when_it_watches_no_more(
    num_blocks: int, tmp_path: Path
) -> None:
    options = ReplayOptions(num_blocks=num_blocks, block_size=4, max_tokens_per_step=64)
    monitor = kvcheck.monitor(REFERENCE.create(options.manager_config()))
    request = REFERENCE.make_request(monitor, RequestInput("a", range(9)))
    monitor.allocate_slots(request, 9)
    monitor.close()
    monitor.free(request)
    assert monitor.write_record(tmp_path / "run.jsonl") == 2
    assert accepted(tmp_path / "run.jsonl").compared == 2


def test_what_no_record_can_say_is_an_error(tmp_path: Path) -> None:
    monitor = kvcheck.monitor(REFERENCE.create(CROWDED.manager_config()))
    embeddings = PromptEmbeddings(b"12345678", 2)
    given = RequestInput("a", range(4), prompt_embeddings=embeddings)
    monitor.get_computed_blocks(REFERENCE.make_request(monitor, given))
    with pytest.raises(UnrecordableError, match="prompt embeddings"):
        monitor.write_record(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", every_second(SCENARIOS), ids=lambda program: str(program.name))
def test_records_of_every_block_type_are_accepted(program: Program, tmp_path: Path) -> None:
    subject = MonitoredFast("uncompiled", history=8)
    assert first_violation(program, subject, Level.SAFETY) is None
    try:
        subject.monitor.write_record(tmp_path / "run.jsonl")
    except UnrecordableError as error:
        assert "prompt embeddings" in str(error)  # noqa: PT017 (what no record can hold, and no other)
        return
    accepted(tmp_path / "run.jsonl")


def test_two_commands_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl.gz"
    few = ("--limit", "5", "--num-blocks", "60", "--no-check")
    assert main(["replay", "demo", "--impl", "kvfast-uncompiled", *few, "--record", str(path)]) == 0
    said = capsys.readouterr()
    assert "hit rate" in said.out
    assert f"to check them: kvspec golden {path} --impl kvref" in said.err
    assert main(["golden", str(path), "--impl", "kvref", "-v"]) == 0
    said = capsys.readouterr()
    assert f"{path}: passed, " in said.out
    assert "1 passed, 0 failed" in said.out


@pytest.mark.deep
def test_all_of_the_demo_is_accepted(fast: Implementation, tmp_path: Path) -> None:
    path = tmp_path / "demo.jsonl.gz"
    with RecordedImplementation(fast, path) as recorded, open_trace("demo") as demo:
        Driver(
            recorded, ReplayOptions(300, 64), demo, trace_name="demo", check_invariants=False
        ).run()
    assert accepted(path).compared == recorded.num_operations > 30_000


class FailsInTheEnd(ReferenceImplementation):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager = super().create(config, **options | {"check_invariants": False})

        def free(request: Request) -> None:
            raise self.error

        manager.free = free  # type: ignore[method-assign] # a twin that is broken on purpose
        return manager


def test_what_came_before_an_error_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        recorded_replay(tmp_path / "run.jsonl", FailsInTheEnd(ZeroDivisionError))
    assert accepted(tmp_path / "run.jsonl").compared > 10


def test_an_interrupted_run_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        recorded_replay(tmp_path / "run.jsonl", FailsInTheEnd(KeyboardInterrupt))
    assert list(tmp_path.iterdir()) == []


def test_an_error_before_the_first_operation_leaves_no_record(tmp_path: Path) -> None:
    too_few = ReplayOptions(num_blocks=2, block_size=4)
    with pytest.raises(TraceError):
        recorded_replay(tmp_path / "run.jsonl", REFERENCE, too_few)
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_of_one_manager(tmp_path: Path) -> None:
    with RecordedImplementation(REFERENCE, tmp_path / "run.jsonl") as recorded:
        recorded.create(CROWDED.manager_config())
        with pytest.raises(UnsupportedError, match="a second manager"):
            recorded.create(CROWDED.manager_config())


def test_whole_steps_are_recorded_as_their_single_calls(
    fast: Implementation, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    with RecordedImplementation(fast, path) as recorded:
        manager = recorded.create(CROWDED.manager_config())
        batch = batched_of(recorded, manager)
        requests = [recorded.make_request(manager, RequestInput(n, range(9))) for n in "ab"]
        handles = [batch.register(request) for request in requests]
        batch.step(StepPlan(new=handles))
        batch.append(handles, [1, 2])
        batch.step(StepPlan(decoding=handles))
        batch.step(StepPlan(finished=handles))
    names = [operation.name for operation in Tape.read(path).operations]
    assert names.count("allocate_slots") == 4
    assert names.count("append_tokens") == names.count("free") == 2
    assert accepted(path).compared == len(names)


CONFIG = make_config(block_size=2, max_model_len_tokens=16)


@pytest.mark.parametrize("policy", [Policy(), Policy.vllm_0_24()])
def test_what_is_recorded_replays(policy: Policy, tmp_path: Path) -> None:
    recorder = Recorder(ReferenceImplementation(), replace(CONFIG, policy=policy))
    recorder.play("new_request", "r", prompt_token_ids=[1, 2, 3])
    assert recorder.play(
        "allocate_slots", "r", num_computed_tokens=0, status="WAITING", num_new_tokens=3
    ) == [[1, 2]]
    recorder.play("free", "r")
    path = tmp_path / "mine.jsonl"
    footer = recorder.write(path)
    assert footer.coverage == {"op:allocate_slots": 1, "op:free": 1, "op:new_request": 1}
    result = replay_trace(path, ReferenceImplementation())
    assert (result.passed, result.compared) == (True, 3)
    assert result.header.config.policy == policy


@pytest.mark.parametrize("call", ["take_block_copies", "withdraw"])
def test_calls_of_later_versions_are_recorded(call: str, tmp_path: Path) -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)
    recorder.play("new_request", "r", prompt_token_ids=[1, 2, 3])
    assert recorder.admit("r", 3) == [[1, 2]]
    if call == "withdraw":
        assert recorder.play(call, "r", num_computed_tokens=2) == []
    else:
        recorder.play(call)
    path = tmp_path / "later.jsonl"
    recorder.write(path)
    result = replay_trace(path, ReferenceImplementation())
    assert (result.passed, result.header.version) == (True, 4)


def test_errors_are_recorded_by_the_class_a_caller_catches(tmp_path: Path) -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)
    recorder.play("free_blocks", block_ids=[3])
    recorder.play("free_blocks", block_ids=[99])
    recorder.play("new_request", "r", prompt_token_ids=[-1])
    raised = [operation.raises for operation in recorder.operations]
    assert raised == ["ValueError", "KeyError", "ValueError"]
    path = tmp_path / "mine.jsonl"
    recorder.write(path)
    assert replay_trace(path, ReferenceImplementation()).passed


def test_a_defect_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)

    def crash(self: Any, block_ids: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvref.manager.ReferenceManager.evict_blocks", crash)
    with pytest.raises(ZeroDivisionError):
        recorder.play("evict_blocks", block_ids=[1])
    assert recorder.operations == []


def test_only_what_a_record_can_hold_is_played() -> None:
    recorder = Recorder(ReferenceImplementation(), CONFIG)
    with pytest.raises(FormatError, match="'blocks': unknown"):
        recorder.play("evict_blocks", block_ids=[], blocks=[])
    with pytest.raises(InvalidArgumentError, match="op = 'evict'"):
        recorder.play("evict")
    with pytest.raises(InvalidArgumentError, match="req = 'ghost'"):
        recorder.play("free", "ghost")
    with pytest.raises(InvalidArgumentError, match="req = None"):
        recorder.play("free")
    with pytest.raises(InvalidArgumentError, match="req = 'r'"):
        recorder.play("new_step_starts", "r")
    assert recorder.operations == []
