"""`kvspec replay` from its arguments to its exit code: traces, live, beside an engine."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvcheck.cli import _watch, main
from kvcheck.cli._live import LiveView
from kvcheck.tools.replay.formats.mooncake import record_line
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import short_names
from tests.cases import Case, cases
from tests.commands import said_by
from tests.replay.records import line

FAST = ["--impl", "kvref", "--no-check"]


def replay_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["replay", *args, *FAST, "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    content: dict[str, Any] = json.loads(captured.out)
    return content


def failure(capsys: pytest.CaptureFixture[str], *args: str, exit_code: int = 2) -> str:
    assert main(["replay", *args]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("case", cases(__file__, "refused.txt"), ids=str)
def test_what_cannot_be_done_is_one_line(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.expect(said_by(case.name, capsys))


def bad_trace(folder: Path) -> str:
    path = folder / "bad.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in (line(), line(input_length=-4))))
    return str(path)


def test_a_file_a_compressed_file_and_a_pipe_are_one_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(record_line(each) + "\n" for each in SynthTrace("synth:chat?requests=20"))
    plain, zipped = tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"
    plain.write_text(text)
    zipped.write_bytes(gzip.compress(text.encode()))
    from_pipe = subprocess.run(
        [sys.executable, "-m", "kvcheck.cli", "replay", "-", *FAST, "--json", "-"],
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    reports = [replay_json(capsys, str(path)) for path in (plain, zipped)]
    reports.append(json.loads(from_pipe.stdout))
    reports.append(replay_json(capsys, "synth:chat?requests=20"))
    names = [each.pop("trace") for each in reports]
    assert names[2:] == ["standard input", "synth:chat?seed=0&requests=20"]
    assert all({**each, "seconds": None} == {**reports[0], "seconds": None} for each in reports)


def test_a_limit_takes_as_many_generated_requests_as_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = replay_json(capsys, "synth:chat", "--limit", "30", "--seed", "4", "--sample", "0.3")
    assert (content["requests"], content["trace"]) == (30, "synth:chat?seed=4")


def test_every_output_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [str(tmp_path / name) for name in ("r.json", "p.SVG", "h.html")]
    args = [
        flag for pair in zip(("--json", "--plot", "--html"), outputs, strict=True) for flag in pair
    ]
    assert main(["replay", "demo", "--limit", "9", *FAST, *args]) == 0
    assert "tokens hit" in capsys.readouterr().out
    assert json.loads(Path(outputs[0]).read_text())["requests"] == 9
    assert "<svg" in Path(outputs[1]).read_text()
    assert "<svg" in Path(outputs[2]).read_text()
    assert sorted(os.listdir(tmp_path)) == ["h.html", "p.SVG", "r.json"]


def test_bad_input_leaves_nothing_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = bad_trace(tmp_path)
    (tmp_path / "r.json").write_text("as before")
    outputs = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]
    error = failure(capsys, trace, *FAST, *outputs)
    assert error.startswith(
        f"kvspec: error: {trace}, line 2, field 'input_length':"
        " must be an integer of at least 1, not -4; a line of mooncake has "
    )
    assert sorted(os.listdir(tmp_path)) == ["bad.jsonl", "r.json"]
    assert (tmp_path / "r.json").read_text() == "as before"


def test_an_implementation_that_breaks_a_rule_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    error = failure(capsys, "demo", "--impl", "tests.replay.noted:refuser", exit_code=1)
    assert error.startswith("kvspec: error: kvref: step 0, request of line 1: was refused")


def test_a_folder_without_permission_is_known_beforehand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, so the system's error is simulated.
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "no permission to write in" in failure(
        capsys, "demo", *FAST, "--json", str(tmp_path / "r.json")
    )


@pytest.mark.parametrize("trace", ["demo", "-"], ids=["bar", "spinner"])
def test_a_terminal_sees_progress_and_quiet_does_not(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[io.StringIO] = []

    def terminal() -> Console:
        seen.append(io.StringIO())
        return Console(file=seen[-1], force_terminal=True, width=120)

    monkeypatch.setattr("kvcheck.cli._watch.progress_console", terminal)
    for quiet in ([], ["--quiet"]):
        text = "".join(record_line(each) + "\n" for each in SynthTrace("synth:chat?requests=20"))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["replay", trace, *FAST, *quiet]) == 0
    shown, silent = (each.getvalue() for each in seen)
    assert " requests, " in shown
    assert ("━" in shown) == (trace == "demo")
    assert silent == ""
    assert "tokens hit" in capsys.readouterr().out


def test_without_matplotlib_a_picture_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = failure(capsys, "demo", *FAST, "--plot", str(tmp_path / "p.png"))
    assert "pip install 'kvspec[plot]'" in error


FAST_OF_BESIDE = ("--impl", "kvfast", "--no-check")
TRACES = ("demo", "synth:chat?requests=30", "synth:rag?requests=20")
POOL = ("--num-blocks", "600")


def one(capsys: pytest.CaptureFixture[str], trace: str) -> dict[str, Any]:
    assert main(["replay", trace, *FAST_OF_BESIDE, *POOL, "--json", "-"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**content, "seconds": None}


def test_each_is_replayed_as_it_is_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *TRACES, *FAST_OF_BESIDE, *POOL, "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["format"], content["version"]) == ("kvspec-replays", 1)
    assert [{**each, "seconds": None} for each in content["replays"]] == [
        one(capsys, trace) for trace in TRACES
    ]


def test_page_and_picture_show_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "all.html", tmp_path / "all.svg"
    outputs = ("--html", str(page), "--plot", str(picture))
    assert main(["replay", *TRACES, *FAST_OF_BESIDE, *POOL, *outputs]) == 0
    capsys.readouterr()
    hits = [f"{one(capsys, trace)['hit_rate']:.3%}" for trace in TRACES]
    text = page.read_text()
    assert all(each in text for each in hits)
    assert text.count("<svg") == 1
    assert "<script" not in text
    again = tmp_path / "again.svg"
    assert main(["replay", *TRACES, *FAST_OF_BESIDE, *POOL, "--plot", str(again)]) == 0
    assert again.read_bytes() == picture.read_bytes()


def test_names_are_short_where_they_can_be() -> None:
    assert short_names(["/a/x.jsonl", "/b/y.jsonl"]) == ["x.jsonl", "y.jsonl"]
    assert short_names(["/a/x.jsonl", "/b/x.jsonl", "demo"]) == ["/a/x.jsonl", "/b/x.jsonl", "demo"]
    assert short_names(["/a/x.jsonl", "/a/x.jsonl"]) == ["x.jsonl", "x.jsonl"]


FAST_OF_LIVE = ("--impl", "kvfast", "--no-check")


def report(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    assert main(["replay", "demo", "--limit", "60", *FAST_OF_LIVE, "--json", "-", *options]) == 0
    captured = capsys.readouterr()
    content: dict[str, Any] = json.loads(captured.out)
    return {**content, "seconds": None}, captured.err


@pytest.mark.parametrize("arrival", ["ignore", "timestamp"])
@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("engines", [(), ("--engines", "3", "--route", "prefix")])
def test_the_report_is_the_same(
    arrival: str,
    is_terminal: bool,
    engines: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(
        _watch,
        "progress_console",
        lambda: Console(file=seen, force_terminal=is_terminal, width=100),
    )
    alone, _ = report(capsys, "--arrival", arrival, "--quiet", *engines)
    assert seen.getvalue() == ""
    monkeypatch.setattr(_watch, "_SECONDS_BETWEEN_MOMENTS", 0.0)
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_VIEWS", 0.1)
    shown, _ = report(capsys, "--arrival", arrival, "--live", *engines)
    assert shown == alone
    name, title = (
        ("demo by prefix", "3 engines of kvfast by prefix") if engines else ("demo", "kvfast")
    )
    lines = seen.getvalue().count(f"{name}: ")
    if is_terminal:
        assert f"demo through {title}" in seen.getvalue()
        assert lines == 0
    else:
        steps = alone["routes"][0]["steps"] if engines else alone["steps"]
        assert lines > steps / 2
        assert "\x1b" not in seen.getvalue()


def metrics(report: dict[str, Any]) -> str:
    """Return what a vLLM that did the same would give to Prometheus."""
    options = report["options"]
    pool = f'block_size="{options["block_size"]}",num_gpu_blocks="{options["num_blocks"]}"'
    return (
        f'vllm:cache_config_info{{enable_prefix_caching="True",{pool}}} 1.0\n'
        f'vllm:prefix_cache_queries_total{{engine="0"}} {report["tokens_queried"]}\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {report["tokens_hit"]}\n'
        f'vllm:num_preemptions_total{{engine="0"}} {report["preemptions"]}\n'
    )


def test_an_engine_is_compared_by_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.prom", tmp_path / "after.prom"

    def run(*options: str) -> Any:
        assert main(["replay", "demo", "--no-check", "--quiet", "--json", "-", *options]) == 0
        return json.loads(capsys.readouterr().out)

    first = run("--limit", "40")
    before.write_text(metrics(first))
    after.write_text(metrics(run()))
    alone = run("--against", str(after))["against"]
    assert (alone["difference"], alone["reasons"]) == (0, [])
    better = tmp_path / "better.prom"
    better.write_text(metrics({**run(), "tokens_hit": 400_000}))
    assert "answers of earlier turns" in run("--against", str(better))["against"]["reasons"][0]
    smaller = run("--num-blocks", "299", "--against", str(after))["against"]
    assert smaller["reasons"][0].endswith("--num-blocks 300")
    assert run("--against", str(after))["options"]["num_blocks"] == 300
    pool = after.read_text().replace('"300"', '"299"')
    (tmp_path / "pool.prom").write_text(pool)
    assert run("--against", str(tmp_path / "pool.prom"))["options"]["num_blocks"] == 299
    others = run("--limit", "40", "--against", str(after))["against"]
    assert any("more tokens looked up" in reason for reason in others["reasons"])
    rest = run("--against", str(before), "--against", str(after))["against"]
    assert not any("twice" in reason for reason in rest["reasons"])
    assert rest["tokens_queried"] == alone["tokens_queried"] - first["tokens_queried"]
    assert main(["replay", "demo", "--against", str(after), "--against", str(before)]) == 2
    assert "a counter is lower" in capsys.readouterr().err
    after.write_text(after.read_text().replace('caching="True"', 'caching="False"'))
    assert "caching is off" in run("--against", str(after))["against"]["reasons"][0]
    assert main(["replay", "demo", "--engines", "2", "--against", str(after)]) == 2
    assert main(["replay", "demo", "--against", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


def test_the_seconds_that_hits_save(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--limit", "40", "--no-check", "--prefill-rate", "1000")
    assert main(["replay", "demo", *options]) == 0
    out = capsys.readouterr().out
    hit = int(re.search(r"tokens hit +([\d,]+)", out)[1].replace(",", ""))  # type: ignore[index]  # there
    assert f"prefill saved         {hit / 1000:,.1f} s of" in out
