"""`kvspec replay` over several engines, and `--metrics` by Prometheus' own parser."""

from __future__ import annotations

import json
import re
import socket
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kvfast
from kvcheck.cli import _support, main
from kvcheck.cli import _watch as watch_module
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.fleet import ALONE, ROUTES, Fleet
from kvcheck.tools.replay.metrics import COUNTERS, GAUGES
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import Moment
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


FAST_OF_METRICS = ("--impl", "kvfast", "--no-check", "--quiet")

Samples = dict[tuple[str, str | None], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, sample.labels.get("model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_file_is_written_on_the_way_and_waiting_requests_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "replay.prom"
    texts: list[str] = []
    moments: list[Moment] = []
    monkeypatch.setattr(watch_module, "_SECONDS_BETWEEN_MOMENTS", 0.0)
    monkeypatch.setattr(watch_module, "_SECONDS_BETWEEN_FILES", 0.0)
    write, show = _support.write_whole, watch_module.MetricsOutput.show

    def written(path: Path, content: bytes) -> None:
        write(path, content)
        texts.append(path.read_text())

    def shown(self: Any, name: str, engines: list[Moment], *, is_last: bool = False) -> None:
        moments.extend(engines)
        show(self, name, engines, is_last=is_last)

    monkeypatch.setattr(watch_module, "write_whole", written)
    monkeypatch.setattr(watch_module.MetricsOutput, "show", shown)
    trace = tmp_path / "t.jsonl"
    line = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    times = [0, 0, 0, 0, 90, 90, 90, 5_000]
    trace.write_text("".join(json.dumps({"timestamp": at, **line}) + "\n" for at in times))
    options = ("--max-running", "1", "--arrival", "timestamp", "--metrics", str(target))
    assert main(["replay", str(trace), *FAST_OF_METRICS, *options]) == 0
    assert len(texts) == len(moments) > 20
    for text, moment in zip(texts, moments, strict=True):
        gauges = samples(text)
        known = [gauges[f"vllm:num_requests_{kind}", str(trace)] for kind in ("running", "waiting")]
        ended = gauges["vllm:request_success_total", str(trace)]
        assert ended == moment.num_ended
        # The clock is that of the next step.
        assert sum(known) + ended == sum(at <= moment.clock_ms for at in times)
    assert max(moment.num_waiting for moment in moments) == 6


def test_names_and_kinds_are_those_that_vllm_gives() -> None:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vllm is not installed")
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text("utf-8")
    made = re.findall(r'self\._(gauge|counter)_cls\(\s*name="(vllm:\w+)"', source)
    kinds = {name: kind for kind, name in made}
    for kind, ours in (("gauge", GAUGES), ("counter", COUNTERS)):
        for name in ours:
            assert name.startswith("kvspec:") or kinds[name] == kind
    assert kinds["vllm:request_success"] == "counter"
    assert '"vllm:cache_config_info"' in source
    assert '["model_name", "engine"]' in source


def test_an_address_is_answered_while_the_replay_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[str] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/metrics"
    run = Driver.run

    def asked(self: Driver) -> Any:
        result = run(self)
        assert self._on_progress is not None
        self._on_progress(self)
        with urllib.request.urlopen(address, timeout=10) as answer:
            answers.append(answer.read().decode())
        return result

    monkeypatch.setattr(Driver, "run", asked)
    assert (
        main(["replay", "demo", "--limit", "5", *FAST_OF_METRICS[:-1], "--metrics", f":{port}"])
        == 0
    )
    assert samples(answers[0])["vllm:prefix_cache_queries_total", "demo"] > 0
    assert address in capsys.readouterr().err
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_what_cannot_be_served_or_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["replay", "demo", *FAST_OF_METRICS, "--metrics", f":{port}"]) == 2
        assert "in use" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["replay", "demo", *FAST_OF_METRICS, "--metrics", str(tmp_path / "f")]) == 2
    assert "pip install 'kvspec[metrics]'" in capsys.readouterr().err
