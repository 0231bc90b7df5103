"""`kvspec whatif`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcheck.cli import main
from tests.cases import Case, cases
from tests.commands import said_by


def run(*arguments: str) -> int:
    return main(["whatif", *arguments])


def test_several_traces_and_block_sizes_stand_side_by_side(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    traces = ("demo", "synth:chat?requests=20&seed=1")
    sizes = ("--block-size", "64", "--block-size", "512", "--sizes", "5")
    assert run(*traces, *sizes, "--json", str(found)) == 0
    curves = json.loads(found.read_text())["curves"]
    assert [(each["trace"], each["block_size"]) for each in curves] == [
        (trace, size) for trace in ("demo", curves[2]["trace"]) for size in (64, 512)
    ]
    assert all(each["points"][-1]["lru"] <= each["infinite"] + 1e-12 for each in curves)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [%s]}\n'
    (tmp_path / "alone.jsonl").write_text("".join(line % number for number in (1, 2)))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("case", cases(__file__, "whatif.txt"), ids=str)
def test_what_is_said(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.expect(said_by(case.given[0], capsys))


@pytest.mark.usefixtures("alone")
def test_page_and_json_say_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("alone.jsonl", "--sizes", "2", "--html", "page.html") == 0
    assert "100.0%" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    memory = ("--model", "llama-3.1-8b", "--memory-gib", "1")
    assert run("demo", *memory, "--memory-gib", "2", "--json", "found.json") == 0
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["model"] == {
        "name": "llama-3.1-8b",
        "bytes_per_token": 131_072,
        "block_size": 16,
    }
    assert [each["num_blocks"] for each in written["curves"][0]["points"]] == [512, 1024]
    capsys.readouterr()
    assert main(["replay", "demo", *memory]) == 0
    assert "512 blocks of 16 tokens, invariants not checked" in capsys.readouterr().out


def test_a_replay_names_the_layers_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    memory = ("--model", "gpt-oss-20b", "--memory-gib", "0.5", "--limit", "3")
    assert main(["replay", "demo", *memory, "--json", "-"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert (options["model"], options["memory_gib"]) == ("gpt-oss-20b", 0.5)
    assert options["groups"] == ["full attention", "sliding window of 128 tokens"]
    assert main(["replay", "demo", *memory]) == 0
    said = capsys.readouterr().out
    assert "gpt-oss-20b in 0.5 GiB on each worker: full attention; sliding window of" in said


def test_whatif_writes_the_replays_of_a_model_with_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    memory = ("--model", "gpt-oss-20b", "--memory-gib", "0.5", "--memory-gib", "1")
    assert run("demo", *memory, "--limit", "150", "--jobs", "2", "--json", str(found)) == 0
    (curve,) = json.loads(found.read_text())["curves"]
    for point in curve["points"]:
        alone = (*memory[:3], str(point["memory_gib"]), "--max-running", "1", "--limit", "150")
        capsys.readouterr()
        assert main(["replay", "demo", *alone, "--json", "-"]) == 0
        replayed = json.loads(capsys.readouterr().out)
        assert replayed["hit_rate"] == point["hit_rate"] < curve["infinite"]
        assert replayed["options"]["num_blocks"] == point["num_blocks"]
