"""The driver's rules and the explanation of its hits, on scenes small enough to follow by hand."""

from __future__ import annotations

import weakref

import pytest

from kvcheck.tools.replay.driver import Driver, ReplayError
from kvcheck.tools.replay.explain import Explainer, ExplanationError, Reason, Waterfall
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import ReplayResult
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import TraceError, TraceRecord
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput
from tests.cases import Case, cases, words
from tests.replay.noted import Noted, NotingManager
from tests.replay.records import record


def replay(
    records: list[TraceRecord], options: ReplayOptions, noted: Noted | None = None
) -> tuple[ReplayResult, NotingManager]:
    noted = noted or Noted()
    driver = Driver(noted, options, records, trace_name="scene")
    assert noted.manager is not None
    return driver.run(), noted.manager


COUNTS = (
    *("requests", "steps", "tokens_queried", "tokens_hit", "tokens_computed", "tokens_generated"),
    *("evictions", "preemptions", "preempted_requests", "preempted_tokens_queried"),
    *("preempted_tokens_hit", "peak_usage", "mean_usage"),
)


@pytest.mark.parametrize("case", cases(__file__, "driver.txt"), ids=str)
def test_what_the_driver_asks_and_counts(case: Case) -> None:
    given = [words(line) for line in case.given if not line.startswith("#")]
    (_, *sizes), options = given[0]
    scene = [
        record(number, *rest[:3], timestamp_ms=sum(rest[3:]), **named)
        for number, ((_, *rest), named) in enumerate(given[1:], 1)
    ]
    noted = Noted()
    try:
        result, manager = replay(scene, ReplayOptions(*sizes, **options), noted)
    except TraceError as error:
        case.expect([str(error)])
        return
    assert manager.steps == result.counts.steps
    assert manager.snapshot().requests == {}
    counts = {name: round(getattr(result.counts, name), 6) for name in COUNTS}
    case.expect([*manager.noted, *(f"{name} {count:,}" for name, count in counts.items() if count)])


@pytest.mark.parametrize(
    ("flaw", "problem"),
    [({"refuse_all": True}, "nothing runs"), ({"overlong_hit": True}, "the last is never a hit")],
)
def test_a_flaw_ends_the_replay(flaw: dict[str, bool], problem: str) -> None:
    with pytest.raises(ReplayError, match=problem) as caught:
        replay([record(1, [0], 10)], ReplayOptions(8, 16), Noted(**flaw))
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
        *(("num_blocks", 1), ("block_size", 0), ("max_tokens_per_step", True)),
        *(("max_running", -1), ("step_ms", 2.5), ("arrival", "never")),
    ],
)
def test_options_outside_their_domain_are_errors(field: str, value: object) -> None:
    options: dict[str, object] = {"num_blocks": 8, "block_size": 16, field: value}
    with pytest.raises(InvalidArgumentError, match=field):
        ReplayOptions(**options)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("case", cases(__file__, "explain.txt"), ids=str)
def test_what_became_of_repeated_tokens_is_explained(case: Case) -> None:
    (_, block_size), _ = words(case.given[0])
    explainer, total = Explainer(block_size), 0
    for number, line in enumerate(case.given[1:], 1):
        (_, ids, length), options = words(line)
        hit = options.get("hit", 0)
        made = record(number, ids, length, options.get("out", 1), output=options.get("output"))
        nodes = explainer.admitted(made, hit)
        end = options.get("registered", made.cached_length)
        for start in range(0, end, options.get("by", end)):
            explainer.registered(nodes, start, min(end, start + options.get("by", end)))
        total += hit
    waterfall = explainer.waterfall(total)
    assert waterfall.residual == 0
    case.expect(as_lines(waterfall))


def as_lines(waterfall: Waterfall) -> list[str]:
    repeated = f"{waterfall.repeated_ids} ids of {waterfall.repeated_tokens} tokens"
    rates = f"{waterfall.repeat_rate} of ids repeated, {waterfall.hit_rate} of tokens hit"
    items = [
        f"{each.name} {each.tokens}, {each.rate_change}"
        for each in waterfall.items
        if each.rate_change
    ]
    return [f"{repeated}; {rates}", *items]


def test_an_explanation_that_does_not_add_up_is_an_error() -> None:
    explainer = Explainer(512)
    explainer.admitted(record(1, [1], 512), 0)
    with pytest.raises(ExplanationError, match="0 tokens explained as hits, 5 hit") as caught:
        explainer.waterfall(5)
    assert (caught.value.explained_tokens, caught.value.hit_tokens) == (0, 5)
