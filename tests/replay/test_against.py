"""`--against`: a replay beside what an engine counted; and the seconds that hits save."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main


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
