"""`kvspec replay` over several engines, and what it shows while it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvfast
from kvcheck.cli import _watch as watch_module
from kvcheck.cli import main
from kvcheck.cli._live import LiveView
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.fleet import ALONE, ROUTES, Fleet
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.pace import Figures
from kvcheck.tools.replay.result import Moment
from kvcheck.tools.replay.series import Series
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.tools.replay.turns import Turns
from kvfast.fleet.index import FastIndex
from kvspec.errors import InvalidArgumentError

NUM_REQUESTS = 60
FAST = ["--impl", "kvfast", "--no-check"]


def demo(name: str = "demo") -> list[TraceRecord]:
    with open_trace(name) as source:
        return list(source)[:NUM_REQUESTS]


def replayed(
    num_engines: int,
    route: str,
    *,
    arrival: str = "ignore",
    index: FastIndex | None = None,
    trace: str = "demo",
) -> dict[str, Any]:
    return Fleet(
        kvfast.implementation(),
        ReplayOptions(150, 64, arrival=arrival),
        demo(trace),
        num_engines=num_engines,
        route=route,
        index=index or FastIndex(),
        trace_name="demo",
        check_invariants=False,
    ).run()


@pytest.mark.parametrize("trace", ["demo", "sample:vllm-log"])
@pytest.mark.parametrize("arrival", ["ignore", "timestamp"])
@pytest.mark.parametrize("route", ROUTES)
def test_one_engine_is_the_driver(arrival: str, route: str, trace: str) -> None:
    options = ReplayOptions(150, 64, arrival=arrival)
    alone = Driver(
        kvfast.implementation(), options, demo(trace), trace_name="demo", check_invariants=False
    ).run()
    found = replayed(1, route, arrival=arrival, trace=trace)
    for name in ("requests", "tokens_queried", "tokens_hit", "tokens_computed", "evictions"):
        assert found[name] == getattr(alone.counts, name), name
    assert found["engines"][0]["steps"] == alone.counts.steps
    assert found["imbalance"] == 1.0


@pytest.mark.parametrize("arrival", ["ignore", "timestamp"])
def test_every_route_serves_every_request_and_prefixes_buy_hits(arrival: str) -> None:
    found = {route: replayed(4, route, arrival=arrival) for route in ROUTES}
    queried = sum(record.input_length for record in demo())
    for route, each in found.items():
        assert (each["requests"], each["tokens_queried"]) == (NUM_REQUESTS, queried), route
        assert sum(engine["requests"] for engine in each["engines"]) == NUM_REQUESTS
        assert each["imbalance"] >= 1.0
    assert {engine["requests"] for engine in found["round-robin"]["engines"]} == {15}
    assert found["prefix"]["hit_rate"] >= found["least-work"]["hit_rate"]
    assert found["least-work"]["hit_rate"] > found["round-robin"]["hit_rate"]


@pytest.mark.parametrize(("engines", "route"), [(0, "prefix"), (2, "shortest")])
def test_nonsense_is_refused(engines: int, route: str) -> None:
    with pytest.raises(InvalidArgumentError):
        replayed(engines, route)


def test_a_load_counts_each_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, chosen, ended = Fleet._taken, Fleet._chosen, Turns.ended
    alive: dict[str, int] = {}

    def take(self: Fleet) -> TraceRecord:
        record = taken(self)
        alive[record.place] = record.input_length
        return record

    def end(self: Turns, record: TraceRecord) -> None:
        alive.pop(record.place, None)
        ended(self, record)

    def choose(self: Fleet, record: TraceRecord) -> Any:
        assert sum(engine.load_tokens for engine in self._engines) == sum(alive.values())
        return chosen(self, record)

    monkeypatch.setattr(Fleet, "_taken", take)
    monkeypatch.setattr(Fleet, "_chosen", choose)
    monkeypatch.setattr(Turns, "ended", end)
    replayed(3, "least-loaded")


def test_the_command_shows_a_row_for_each_route(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    args = ["replay", "demo", *FAST, "--engines", "2", "--limit", "20"]
    assert main([*args, "--json", str(tmp_path / "a.json")]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row[:14].rstrip() for row in rows[-9:-3]] == [*ROUTES, *ALONE]
    content = json.loads((tmp_path / "a.json").read_text())
    assert (content["format"], content["version"]) == ("kvspec-replay-fleet", 1)
    assert [each["requests"] for each in content["routes"]] == [20] * 4
    for alone, blocks in zip(content["alone"], ("300", "599"), strict=True):
        pool = ["replay", "demo", *FAST, "--limit", "20", "--num-blocks", blocks, "--json", "-"]
        assert main(pool) == 0
        assert alone["tokens_hit"] == json.loads(capsys.readouterr().out)["tokens_hit"]
    assert main([*args, "--route", "prefix", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["routes"] == [content["routes"][2]]


def test_requests_that_wait_are_counted_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[Moment] = []

    def shown(self: LiveView, found: Figures, series: Series, engines: list[Moment]) -> None:
        moments.extend(engines)

    monkeypatch.setattr(watch_module, "_SECONDS_BETWEEN_MOMENTS", 0.0)
    monkeypatch.setattr(LiveView, "show", shown)
    trace = tmp_path / "t.jsonl"
    line = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    times = [0, 0, 0, 0, 90, 90, 90, 5_000]
    trace.write_text("".join(json.dumps({"timestamp": at, **line}) + "\n" for at in times))
    options = ("--max-running", "1", "--arrival", "timestamp", "--live")
    assert main(["replay", str(trace), *FAST, *options]) == 0
    assert len(moments) > 20
    for moment in moments:
        # Those admitted, and those that wait; the clock is that of the next step.
        come = moment.counts.requests - moment.num_preempted + moment.num_waiting
        assert come == sum(at <= moment.clock_ms for at in times)
    assert max(moment.num_waiting for moment in moments) == 6
