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


LLAMA = ("--model", "llama-3.1-8b")  # 131,072 bytes a token: 1 GiB for 8,192 of them


def test_pools_are_chosen_and_shown_by_the_memory_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    both = ("--memory-gib", "2", "--memory-gib", "1")
    assert run("demo", *LLAMA, *both, "--json", str(found)) == 0
    written = json.loads(found.read_text())
    assert written["model"] == {"name": "llama-3.1-8b", "bytes_per_token": 131_072}
    assert [each["num_blocks"] for each in written["curves"][0]["points"]] == [16, 32]
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["16", "7,680", "0.94"] in lines  # without the null block
    assert run("demo", *LLAMA, "--tensor", "2", "--memory-gib", "1") == 0
    assert ["32", "15,872", "0.97"] in [x.split()[:3] for x in capsys.readouterr().out.splitlines()]
    assert run("demo", "demo", *LLAMA, "--block-size", "64", "--memory-gib", "1") == 0
    assert ["8,128", "0.99"] in [x.split()[:2] for x in capsys.readouterr().out.splitlines()]


def test_a_replay_has_the_pool_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    usual = ("replay", "demo", "--impl", "kvfast", "--no-check", "--quiet", *LLAMA)
    assert main([*usual, "--memory-gib", "1"]) == 0
    assert "128 blocks of 64 tokens" in capsys.readouterr().out
    assert main([*usual]) == 2
    assert "--model needs one --memory-gib" in capsys.readouterr().err
