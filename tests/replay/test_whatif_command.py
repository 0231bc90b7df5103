"""`kvspec whatif`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.tools.replay.whatif import ENOUGH_PERCENT
from kvcheck.tools.replay.whatif_text import OF_NOTHING


def run(*arguments: str) -> int:
    return main(["whatif", *arguments])


def test_several_traces_and_block_sizes_stand_side_by_side(tmp_path: Path) -> None:
    found, picture = tmp_path / "found.json", tmp_path / "found.svg"
    traces = ("demo", "synth:chat?requests=20&seed=1")
    sizes = ("--block-size", "64", "--block-size", "512", "--sizes", "5")
    assert run(*traces, *sizes, "--json", str(found), "--plot", str(picture)) == 0
    curves = json.loads(found.read_text())["curves"]
    assert [(each["trace"], each["block_size"]) for each in curves] == [
        (trace, size) for trace in ("demo", curves[2]["trace"]) for size in (64, 512)
    ]
    assert all(each["points"][-1]["lru"] <= each["infinite"] + 1e-12 for each in curves)
    assert b"Belady" in picture.read_bytes()


def test_of_what_an_endless_pool_hits_nothing_is_a_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "alone.jsonl"
    line = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [%s]}\n'
    trace.write_text("".join(line % number for number in (1, 2)), encoding="utf-8")
    page = tmp_path / "page.html"
    assert run(str(trace), "--sizes", "2", "--html", str(page)) == 0
    said = capsys.readouterr().out
    assert "Even an endless pool hits nothing" in " ".join(said.split())
    assert "100.0%" not in said + page.read_text(encoding="utf-8")
    assert f"{ENOUGH_PERCENT}%" not in said
    assert run(str(trace), "demo", "--sizes", "2") == 0
    last = next(
        row for row in capsys.readouterr().out.splitlines() if f"for {ENOUGH_PERCENT} %" in row
    )
    assert OF_NOTHING in last
