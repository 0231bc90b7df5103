"""The monitor as an engine meets it: transparent, bounded, and clear about what it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvcheck
from kvcheck.records.trace import replay_trace
from kvcheck.watch import Monitor
from kvcheck.watch.ownership import Ownership
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.audit import AuditedManager
from kvspec.config import ManagerConfig
from kvspec.errors import (
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    MonitorViolation,
    StaleHitError,
    UnsupportedError,
)
from kvspec.interface import Implementation, KVCacheManager
from kvspec.record_file import read_header
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, Request, RequestInput
from kvspec.snapshot import Snapshot
from tests.mistakes import mistaken
from tests.monitor.test_twins import Engine, config
from tests.stand_ins import WithManager

REFERENCE = ReferenceImplementation()
LEAKS = mistaken("LeaksUnhashedBlocks")


def watched(
    settings: ManagerConfig | None = None,
    implementation: Implementation = REFERENCE,
    **options: Any,
) -> Monitor:
    manager = implementation.create(settings or config(), check_invariants=False)
    return kvcheck.monitor(manager, **options)


def request(
    monitor: KVCacheManager,
    tokens: int = 6,
    name: str = "r",
    *,
    maker: Implementation = REFERENCE,
    **more: Any,
) -> Request:
    return maker.make_request(monitor, RequestInput(name, range(tokens), **more))


def leak(monitor: KVCacheManager, maker: Implementation = LEAKS) -> None:
    """Allocate two blocks, the second not full, which `LEAKS` loses."""
    one = request(monitor, maker=maker)
    monitor.allocate_slots(one, 6)
    monitor.free(one)


def test_it_is_a_manager_and_says_what_the_inner_one_says() -> None:
    monitor = watched()
    assert isinstance(monitor, KVCacheManager)
    inner = monitor.inner
    one = request(monitor)
    blocks = monitor.allocate_slots(one, 6)
    assert blocks is not None
    assert blocks.to_lists() == inner.get_blocks(one).to_lists()
    assert (monitor.config, monitor.none_hash) == (inner.config, inner.none_hash)
    assert (monitor.usage, monitor.num_free_blocks) == (inner.usage, 7)
    assert monitor.snapshot() == inner.snapshot()
    assert monitor.get_unhashed_block_ids(one) == ((2,),)
    assert monitor.get_num_blocks_to_allocate(
        one, num_tokens=9, total_computed_tokens=6, num_tokens_main_model=9
    ) == (1)
    assert monitor.take_residency_samples() == ()
    assert monitor.groups is inner.groups  # type: ignore[attr-defined]  # of this manager's own
    with pytest.raises(AttributeError):
        _ = monitor.no_such_thing


def test_errors_come_through_as_the_same_object(tmp_path: Path) -> None:
    class Raises(ReferenceManager):
        error = StaleHitError(0, 1, 2)

        def new_step_starts(self) -> None:
            raise self.error

    monitor = watched(implementation=WithManager(Raises), record=tmp_path)
    with pytest.raises(StaleHitError) as found:
        monitor.new_step_starts()
    assert found.value is Raises.error
    illegal: tuple[Callable[[], object], ...] = (
        lambda: monitor.allocate_slots(request(monitor), 0),
        lambda: monitor.allocate_slots(request(monitor), "x"),  # type: ignore[arg-type]  # illegal
        lambda: monitor.free("no request"),  # type: ignore[arg-type]  # illegal
        lambda: monitor.free_blocks([3]),
        lambda: monitor.evict_blocks([99]),
        lambda: monitor.cache_blocks(request(monitor), None),  # type: ignore[arg-type]  # illegal
    )
    for call in illegal:
        with pytest.raises(KVSpecError):
            call()
    assert monitor.report().violation is None
    assert not list(tmp_path.iterdir())


def test_audits_around_a_manager_are_taken_off() -> None:
    audited = REFERENCE.create(config())
    assert isinstance(audited, AuditedManager)
    monitor = kvcheck.monitor(audited)
    assert monitor.inner is audited.inner
    assert kvcheck.monitor(monitor).inner is monitor.inner


def test_the_first_violation_ends_the_watch(tmp_path: Path) -> None:
    monitor = watched(implementation=LEAKS, record=tmp_path)
    with pytest.raises(MonitorViolation) as found:
        leak(monitor)
    violation = found.value
    assert isinstance(violation, InvariantViolation)
    assert (violation.rule, violation.invariant) == ("KV-POOL-15", "free_means_unreferenced")
    assert (violation.call, violation.detail) == (
        "free of r",
        "block 2 has no reference but is not free: leaked",
    )
    assert violation.record == tmp_path / "kvspec-violation-KV-POOL-15.jsonl"
    assert violation.hint == f"replay it with: kvspec golden {violation.record} --impl IMPL"
    assert "free queue" in violation.state
    leak(monitor)
    monitor.close()
    assert monitor.report().violation is violation
    assert len(list(tmp_path.iterdir())) == 1


def test_ids_and_returns_are_bounded_to_the_block() -> None:
    ownership = Ownership(num_blocks=4, num_groups=1)
    ownership.check_ids([0, 3], "a list")
    with pytest.raises(InvariantViolation, match=r"outside 0 … 3"):
        ownership.check_ids([4], "a list")
    ownership.pop([1])
    ownership.return_popped([1])
    with pytest.raises(InvariantViolation, match="taken back 1 times"):
        ownership.return_popped([1])


def test_a_function_is_told_and_the_engine_goes_on(tmp_path: Path) -> None:
    told: list[MonitorViolation] = []
    monitor = watched(implementation=LEAKS, record=tmp_path, on_violation=told.append)
    leak(monitor)
    leak(monitor)
    assert [violation.rule for violation in told] == ["KV-POOL-15"]


def test_an_error_that_changed_something_is_the_cause(tmp_path: Path) -> None:
    maker = mistaken("ReturnedUpToTheWrongOne")
    monitor = watched(implementation=maker, record=tmp_path)
    one = request(monitor, maker=maker)
    monitor.allocate_slots(one, 6)
    popped = monitor.pop_blocks_for_free(one)
    with pytest.raises(MonitorViolation) as found:
        monitor.free_blocks([*popped, popped[0]])
    assert found.value.rule == "KV-ERR-2"
    assert isinstance(found.value.__cause__, InvalidArgumentError)


def test_the_record_goes_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(**options: Any) -> Path | None:
        with pytest.raises(MonitorViolation) as found:
            leak(watched(implementation=LEAKS, **options))
        return found.value.record

    name = "kvspec-violation-KV-POOL-15"
    assert record(record=str(tmp_path / "mine.jsonl.gz")) == tmp_path / "mine.jsonl.gz"
    assert record(record=tmp_path) == tmp_path / f"{name}.jsonl"
    assert record(record=tmp_path) == tmp_path / f"{name}-2.jsonl"
    monkeypatch.chdir(tmp_path)
    assert record() == Path(f"{name}-3.jsonl")
    monkeypatch.setenv("KVSPEC_MONITOR_DIR", str(tmp_path / "new"))
    assert record() == tmp_path / "new" / f"{name}.jsonl"
    assert record(record=tmp_path / "not" / "there.jsonl") is None


def test_leaving_the_block_audits_and_a_failure_of_the_engine_is_not_hidden(tmp_path: Path) -> None:
    def evict(monitor: Monitor) -> None:
        one = request(monitor)
        monitor.allocate_slots(one, 6)
        monitor.inner.free(one)

    def leave() -> None:
        with watched(every=100, record=tmp_path) as monitor:
            evict(monitor)

    def fail() -> None:
        with watched(every=100, record=tmp_path) as monitor:
            evict(monitor)
            raise ZeroDivisionError

    with pytest.raises(MonitorViolation, match="seen after close"):
        leave()
    with pytest.raises(ZeroDivisionError):
        fail()


def test_the_report_counts(tmp_path: Path) -> None:
    monitor = watched(every=10, record=tmp_path)
    Engine(REFERENCE, monitor).run(100)
    report = monitor.report()
    assert report.operations > 800
    assert report.operations // 10 <= report.audits <= report.operations // 4
    assert report.checking_seconds > 0
    assert report.manager_seconds > 0
    assert report.peak_memory_bytes > 1000
    assert report.violation is None
    assert f"{report.operations} operations" in str(report)
    assert "no violation" in str(report)


def test_it_can_begin_in_the_middle_of_a_run(tmp_path: Path) -> None:
    for every in (1, 50):
        implementation = mistaken("RefusalTakesABlock")
        manager = implementation.create(config(), check_invariants=False)
        first = request(manager, 8, "first", maker=implementation)
        manager.allocate_slots(first, 8)
        first.num_computed_tokens = 8
        popped = request(manager, 5, "popped", cache_salt="other", maker=implementation)
        manager.allocate_slots(popped, 5)
        blocks = manager.pop_blocks_for_free(popped)
        monitor = kvcheck.monitor(manager, every, record=tmp_path)
        second = request(monitor, 9, "second", maker=implementation)
        hit = monitor.get_computed_blocks(second)
        assert hit.hit_length_tokens == 8
        options: dict[str, Any] = {"num_new_computed_tokens": 8, "new_computed_blocks": hit.blocks}
        monitor.allocate_slots(second, 1, **options)
        implementation.append_tokens(monitor, first, [9])
        monitor.allocate_slots(first, 1)
        monitor.free_blocks(blocks[::-1])
        monitor.take_events()
        monitor.free(first)
        with pytest.raises(MonitorViolation) as found:
            monitor.allocate_slots(request(monitor, 39, "third", maker=implementation), 39)
        assert found.value.record is not None
        result = replay_trace(found.value.record, REFERENCE)
        assert result.mismatch is not None
        assert "allocate_slots" in result.mismatch.what


def test_salts_adapters_and_items_are_part_of_content_and_record(tmp_path: Path) -> None:
    sharing = _with_hashes_of_tokens_only()
    items = {"multimodal": (MultimodalItem("cat", 1, 3),)}
    other = {"multimodal": (MultimodalItem("dog", 1, 3),)}
    pairs: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"lora": LoRA("x", 1)}, {}),
        (items, other),
        ({"prompt_embeddings": PromptEmbeddings(b"abcd", 1)}, {}),
    )
    for mine, yours in pairs:
        monitor = watched(implementation=sharing, record=tmp_path)
        first = sharing.make_request(monitor, RequestInput("a", range(9), **mine))
        monitor.allocate_slots(first, 9)
        second = sharing.make_request(monitor, RequestInput("b", range(9), **yours))
        with pytest.raises(MonitorViolation) as found:
            monitor.get_computed_blocks(second)
        assert found.value.rule == "KV-HASH-1"
        if "prompt_embeddings" in mine:
            assert found.value.record is None
            assert "prompt embeddings" in found.value.hint
        else:
            assert found.value.record is not None
            text = found.value.record.read_text()
            assert all(key.replace("multimodal", "mm_features") in text for key in mine)


def _with_hashes_of_tokens_only() -> ReferenceImplementation:
    """Return an implementation that hashes tokens alone, but reports all extra keys."""

    class HashesTokensOnly(ReferenceImplementation):
        def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
            plain = RequestInput(request.request_id, request.prompt_token_ids)
            made: Any = super().make_request(manager, plain)
            made.input = request
            return made  # type: ignore[no-any-return]  # as kvref made it

    return HashesTokensOnly()


class HidesItsState(ReferenceManager):
    def snapshot(self) -> Snapshot:
        raise UnsupportedError("snapshot", "this one")

    def free(self, request: Request) -> None:
        super().free(request)
        self.pool.free_queue.pop()


def test_a_manager_without_a_snapshot_is_watched_from_outside(tmp_path: Path) -> None:
    monitor = watched(implementation=WithManager(HidesItsState), record=tmp_path)
    with pytest.raises(MonitorViolation) as found:
        leak(monitor, REFERENCE)
    assert found.value.invariant == "space_is_conserved"
    assert found.value.record is not None
    assert not read_header(found.value.record).initial  # type: ignore[union-attr]  # a trace
    assert monitor.report().audits == 0


def test_a_broken_state_is_refused_at_once(tmp_path: Path) -> None:
    manager = LEAKS.create(config(), check_invariants=False)
    leak(manager)
    with pytest.raises(InvariantViolation, match="leaked"):
        kvcheck.monitor(manager, record=tmp_path)
