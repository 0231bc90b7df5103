"""The driver's rules, on scenes small enough to follow by hand."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest

from kvcheck.tools.replay.driver import Driver, ReplayError
from kvcheck.tools.replay.explain import Reason
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import Counts, ReplayResult
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import TraceError, TraceRecord
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput
from tests.replay.noted import Noted, NotingManager
from tests.replay.records import record


def replay(
    records: list[TraceRecord], options: ReplayOptions, noted: Noted | None = None
) -> tuple[ReplayResult, NotingManager]:
    noted = noted or Noted()
    driver = Driver(noted, options, records, trace_name="scene")
    assert noted.manager is not None
    return driver.run(), noted.manager


def test_a_prompt_is_computed_in_chunks_and_the_rest_of_the_budget_admits_the_next() -> None:
    """Budget 512 a step. A: 1,000 in, 2 out. B: 512 in (A's first run), 1 out.

    Step 0: A 512. Step 1: A 488, B hits 256 (never its last block) and computes 24; A generates.
    Step 2: A 1, B 232; A generates its second token and ends, so does B.
    """
    options = ReplayOptions(11, 256, max_tokens_per_step=512)
    result, manager = replay([record(1, [0, 1], 1000, 2), record(2, [0], 512, 1)], options)
    counts = result.counts
    assert manager.allocations == [
        ("line-1", 512, False),
        ("line-1", 488, True),
        ("line-2", 24, True),
        ("line-1", 1, True),
        ("line-2", 232, True),
    ]
    assert (counts.requests, counts.tokens_queried, counts.tokens_hit) == (2, 1512, 256)
    assert (counts.steps, manager.steps) == (3, 3)
    assert counts.tokens_computed == 512 + 488 + 24 + 1 + 232
    assert counts.tokens_generated == 3
    assert counts.peak_usage == pytest.approx(0.5)  # A 4 blocks, B 1 more
    assert counts.mean_usage == pytest.approx((0.2 + 0.5 + 0.5) / 3)
    assert (counts.evictions, counts.preemptions) == (0, 0)
    assert manager.snapshot().requests == {}


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    """Four blocks. A and B: 512 in, 3 out; their first step fills the pool.

    Step 1: A needs a block, B is preempted, B's tail is evicted. Step 2: B (hit 256) does not fit.
    A ends. Step 3: B computes 257 and evicts A's tail. Steps 3 and 4: B generates its last two.
    """
    scene = [record(1, [0], 512, 3), record(2, [1], 512, 3)]
    result, manager = replay(scene, ReplayOptions(5, 256))
    counts = result.counts
    assert manager.looked_up == [("line-1", 0), ("line-2", 0), ("line-2", 256), ("line-2", 256)]
    assert (counts.preemptions, counts.evictions, counts.steps) == (1, 2, 5)
    assert (counts.requests, counts.tokens_queried, counts.tokens_hit) == (2, 1024, 0)
    assert counts.preempted_requests == 1
    assert counts.preempted_tokens_queried == 513
    assert counts.preempted_tokens_hit == 256
    assert counts.tokens_computed == 1024 + 1 + 1 + 257 + 1
    assert counts.tokens_generated == 6


def test_the_youngest_may_be_the_one_that_was_refused() -> None:
    """Four blocks. A: 600 in, 9 out (3 blocks). B: 256 in, 9 out needs a second block: refused."""
    scene = [record(1, [0, 1], 600, 9), record(2, [2], 256, 9)]
    result, manager = replay(scene, ReplayOptions(5, 256))
    assert result.counts.preemptions == 1
    assert manager.allocations[2:5] == [
        ("line-1", 1, True),
        ("line-2", 1, True),
        ("line-1", 1, True),
    ]
    assert result.counts.tokens_generated == 18


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    """As before, and C is refused in step 0. In step 1 B's block would do for C, but C waits.

    B was admitted before, so it stands in front of C, and C runs only after it.
    """
    scene = [record(1, [0, 1], 600, 9), record(2, [2], 256, 9), record(3, [3], 100, 1)]
    _, manager = replay(scene, ReplayOptions(5, 256))
    assert manager.allocations[:7] == [
        ("line-1", 600, False),
        ("line-2", 256, True),
        ("line-3", 100, True),  # step 0: refused
        ("line-1", 1, True),
        ("line-2", 1, True),  # step 1: refused, preempted
        ("line-1", 1, True),
        ("line-2", 1, True),  # step 2: refused at the head of the queue
    ]
    waited = [request for request, _ in manager.looked_up]
    assert waited == ["line-1", "line-2", "line-3"] + ["line-2"] * 8 + ["line-3"]


def test_at_most_so_many_requests_run_at_once() -> None:
    scene = [record(line, [line], 100, 3) for line in range(1, 6)]
    result, manager = replay(scene, ReplayOptions(100, 16, max_running=2))
    assert result.counts.steps == 3 * 3
    assert result.counts.peak_usage == pytest.approx(14 / 99)
    assert [request for request, _ in manager.looked_up] == [f"line-{line}" for line in range(1, 6)]


def test_a_request_without_output_ends_with_its_prompt() -> None:
    result, manager = replay([record(1, [0], 100, 0)], ReplayOptions(8, 16))
    assert (result.counts.steps, result.counts.tokens_generated) == (1, 0)
    assert manager.snapshot().requests == {}


def test_generated_tokens_are_new_in_the_whole_replay() -> None:
    noted = Noted()
    made: list[int] = []
    append = noted.append_tokens

    def remember(manager: KVCacheManager, request: Request, token_ids: Sequence[int]) -> None:
        made.extend(token_ids)
        append(manager, request, token_ids)

    noted.append_tokens = remember  # type: ignore[method-assign]  # a spy
    replay([record(1, [0], 10, 4), record(2, [0], 10, 3)], ReplayOptions(8, 16), noted)
    assert made == list(range(65_536, 65_536 + 7))


def test_requests_arrive_when_the_clock_reaches_them() -> None:
    """25 ms a step. A (at 0, 4 out) runs in steps 0 … 75 ms. B (at 30) joins at 50. C comes alone.

    The steps between B's end and C's arrival are not counted.
    """
    scene = [
        record(1, [0], 10, 4),
        record(2, [1], 10, 1, timestamp_ms=30),
        record(3, [2], 10, 2, timestamp_ms=10_001),
    ]
    options = ReplayOptions(8, 16, arrival="timestamp", step_ms=25)
    result, manager = replay(scene, options)
    assert [request for request, _, _ in manager.allocations] == [
        "line-1",
        "line-1",
        "line-1",
        "line-2",
        "line-1",
        "line-3",
        "line-3",
    ]
    assert result.counts.steps == 4 + 2


def test_a_clock_that_is_late_does_not_go_back() -> None:
    scene = [record(1, [0], 10, 50)] + [
        record(line, [line], 10, 1, timestamp_ms=line) for line in (2, 3)
    ]
    options = ReplayOptions(8, 16, arrival="timestamp", max_running=1)
    assert replay(scene, options)[0].counts.steps == 52


@pytest.mark.parametrize(
    ("input_length", "output_length", "field"),
    [(65, 0, "input_length"), (65, 9, "input_length"), (60, 6, "output_length")],
)
def test_a_request_larger_than_the_pool_is_an_error_of_the_trace(
    input_length: int, output_length: int, field: str
) -> None:
    scene = [record(1, [0], 10), record(2, [0], input_length, output_length)]
    with pytest.raises(TraceError, match="needs 5 blocks of 16 tokens") as caught:
        replay(scene, ReplayOptions(5, 16))
    assert (caught.value.file, caught.value.line, caught.value.field) == ("scene", 2, field)
    assert "--num-blocks 6" in caught.value.problem


def test_a_request_as_large_as_the_pool_runs() -> None:
    result, _ = replay([record(1, [0], 60, 5)], ReplayOptions(5, 16))
    assert result.counts.peak_usage == 1.0
    assert result.counts.tokens_generated == 5


def test_an_implementation_that_refuses_everything_ends_the_replay() -> None:
    with pytest.raises(ReplayError, match="nothing runs") as caught:
        replay([record(1, [0], 10)], ReplayOptions(8, 16), Noted(refuse_all=True))
    assert (caught.value.step, caught.value.line) == (0, 1)


def test_an_implementation_that_refuses_the_only_request_ends_the_replay() -> None:
    noted = Noted()
    driver = Driver(
        noted,
        ReplayOptions(8, 16),
        [record(1, [0], 10, 100)],
        trace_name="scene",
        on_progress=lambda _counts: setattr(noted.manager, "refuse_all", True),
    )
    with pytest.raises(ReplayError, match="although it is alone") as caught:
        driver.run()
    assert caught.value.step == 1


def test_a_hit_of_the_last_token_ends_the_replay() -> None:
    with pytest.raises(ReplayError, match="the last is never a hit"):
        replay([record(1, [0], 10)], ReplayOptions(8, 16), Noted(overlong_hit=True))


def test_progress_is_reported_after_every_step() -> None:
    seen: list[int] = []
    driver = Driver(
        Noted(),
        ReplayOptions(20, 16),
        [record(1, [0], 10, 3)],
        trace_name="scene",
        on_progress=lambda driver: seen.append(driver.moment().counts.steps),
    )
    driver.run()
    assert seen == [1, 2, 3]


def test_the_trace_is_read_as_a_stream_and_ended_requests_are_forgotten() -> None:
    noted = Noted()
    made: list[weakref.ref[object]] = []
    make = noted.make_request

    def remember(manager: KVCacheManager, request: RequestInput) -> Request:
        new = make(manager, request)
        made.append(weakref.ref(new))
        return new

    noted.make_request = remember  # type: ignore[method-assign]  # a spy
    source = SynthTrace("synth:chat?requests=60")
    alive: list[int] = []
    ahead: list[int] = []

    def watch(driver: Driver) -> None:
        alive.append(sum(request() is not None for request in made))
        ahead.append(source.position - driver.moment().counts.requests)

    Driver(
        noted, ReplayOptions(400, 64, max_running=4), source, trace_name="chat", on_progress=watch
    ).run()
    assert max(alive) <= 5
    assert max(ahead) <= 2
    assert len(made) == 60


def test_seconds_by_phase_add_up_to_the_whole() -> None:
    result, _ = replay([record(1, [0], 100, 20)], ReplayOptions(20, 16))
    seconds = result.seconds
    phases = ("hash", "lookup", "allocate", "decode", "free", "events", "driver")
    assert all(getattr(seconds, phase) > 0 for phase in phases)
    assert seconds.total == sum(getattr(seconds, phase) for phase in phases)


@pytest.mark.parametrize("kind", ["chat", "agent", "rag"])
@pytest.mark.parametrize("arrival", ["ignore", "timestamp"])
def test_equal_input_gives_equal_numbers(kind: str, arrival: str) -> None:
    def once() -> tuple[Counts, dict[Reason, int]]:
        records = list(SynthTrace(f"synth:{kind}?requests=40&seed=3"))
        result, _ = replay(records, ReplayOptions(700, 64, arrival=arrival))
        return result.counts, result.waterfall.changes

    assert once() == once()


@pytest.mark.parametrize("kind", ["chat", "agent", "rag"])
def test_a_pool_that_never_evicts_reaches_everything(kind: str) -> None:
    records = list(SynthTrace(f"synth:{kind}?requests=100&seed=3"))
    result, _ = replay(records, ReplayOptions(4_000, 512))
    assert result.counts.evictions == 0
    assert result.waterfall.changes[Reason.NOT_REACHABLE] == 0
    assert result.waterfall.residual == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 1),
        ("block_size", 0),
        ("max_tokens_per_step", True),
        ("max_running", -1),
        ("step_ms", 2.5),
        ("arrival", "never"),
    ],
)
def test_options_outside_their_domain_are_errors(field: str, value: object) -> None:
    options: dict[str, object] = {"num_blocks": 8, "block_size": 16, field: value}
    with pytest.raises(InvalidArgumentError, match=field):
        ReplayOptions(**options)  # type: ignore[arg-type]  # wrong on purpose
