"""`kvspec replay A B`: several traces in one run, beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.tools.replay.names import short_names

FAST = ("--impl", "kvfast", "--no-check")
TRACES = ("demo", "synth:chat?requests=30", "synth:rag?requests=20")
POOL = ("--num-blocks", "600")


def one(capsys: pytest.CaptureFixture[str], trace: str) -> dict[str, Any]:
    assert main(["replay", trace, *FAST, *POOL, "--json", "-"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**content, "seconds": None}


def test_each_is_replayed_as_it_is_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *TRACES, *FAST, *POOL, "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["format"], content["version"]) == ("kvspec-replays", 1)
    assert [{**each, "seconds": None} for each in content["replays"]] == [
        one(capsys, trace) for trace in TRACES
    ]


def test_page_and_picture_show_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "all.html", tmp_path / "all.svg"
    outputs = ("--html", str(page), "--plot", str(picture))
    assert main(["replay", *TRACES, *FAST, *POOL, *outputs]) == 0
    capsys.readouterr()
    hits = [f"{one(capsys, trace)['hit_rate']:.3%}" for trace in TRACES]
    text = page.read_text()
    assert all(each in text for each in hits)
    assert text.count("<svg") == 1
    assert "<script" not in text
    again = tmp_path / "again.svg"
    assert main(["replay", *TRACES, *FAST, *POOL, "--plot", str(again)]) == 0
    assert again.read_bytes() == picture.read_bytes()


def test_names_are_short_where_they_can_be() -> None:
    assert short_names(["/a/x.jsonl", "/b/y.jsonl"]) == ["x.jsonl", "y.jsonl"]
    assert short_names(["/a/x.jsonl", "/b/x.jsonl", "demo"]) == ["/a/x.jsonl", "/b/x.jsonl", "demo"]
    assert short_names(["/a/x.jsonl", "/a/x.jsonl"]) == ["x.jsonl", "x.jsonl"]
