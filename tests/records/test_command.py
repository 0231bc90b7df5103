"""`kvspec golden`: what it replays, what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.records.select import shipped_records
from kvref import ReferenceImplementation
from kvspec.record_file import write_trace
from kvspec.specs import FullAttentionSpec
from tests.records.tape import Tape

SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"


class Ran:
    def __init__(
        self, capsys: pytest.CaptureFixture[str], paths: Sequence[object], *options: object
    ) -> None:
        arguments = ["golden", *map(str, paths), "--impl", "kvref", *map(str, options)]
        self.code = main(arguments)
        captured = capsys.readouterr()
        self.lines = captured.out.splitlines()
        self.errors = captured.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A right record, one with an error in operation 5, one with a quirk there, one deeper."""
    tape = Tape.read(SMALL)
    records = tmp_path / "records"
    (records / "deeper").mkdir(parents=True)

    def write(name: str, altered: Tape, scenario: str) -> None:
        header = replace(altered.header, scenario=scenario)
        write_trace(records / name, header, altered.operations, {})

    wrong = {**tape.operations[5].result, "num_computed_tokens": 4}
    write("a_right.jsonl", tape, "right")
    write("b_wrong.jsonl", tape.altered(5, lambda op: replace(op, result=wrong)), "wrong")
    write("c_quirk.jsonl", tape.altered(5, lambda op: replace(op, quirks=("odd",))), "quirk")
    write("deeper/d_packed.jsonl.gz", tape, "packed")
    return records


def test_without_a_path_the_shipped_records_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = Ran(capsys, [])
    shipped = len(list(shipped_records().rglob("*.jsonl")))
    verdict = f"{shipped} passed, 0 failed"
    assert (ran.code, ran.lines) == (0, [verdict])
    assert ran.errors == ""


def test_a_folder_is_searched_and_failures_are_shown(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    ran = Ran(capsys, [folder])
    assert ran.code == 1
    assert ran.lines[0] == f"{folder}/b_wrong.jsonl, line 7: operation 5, 'b', get_computed_blocks"
    assert "    first at .num_computed_tokens: expected 4, got 8" in ran.lines
    assert ran.lines[-3:] == [
        f"{folder}/c_quirk.jsonl: 29 of 34 records not compared,"
        " from the first with the quirk odd on",
        "29 records not compared, from a known quirk on",
        "3 passed, 1 failed",
    ]


def test_a_file_named_twice_counts_once(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    ran = Ran(capsys, [folder / "a_right.jsonl", folder, folder / "deeper"], "--scenario", "right")
    assert (ran.code, ran.lines[-1]) == (0, "1 passed, 0 failed")


def test_scenarios_are_chosen_by_name(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    ran = Ran(capsys, [folder], "--scenario", "right", "--scenario", "packed")
    assert (ran.code, ran.lines[-1]) == (0, "2 passed, 0 failed")


def test_single_group_chooses_full_attention(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ran = Ran(capsys, [SMALL, LARGE], "--single-group", "full", "-v")
    assert ran.code == 0
    assert ran.lines == [
        f"{SMALL}: passed, 34 operations compared",
        f"{LARGE}: passed, 31 operations compared",
        "2 passed, 0 failed",
    ]
    tape = Tape.read(SMALL)
    none = replace(tape.header.config.kv_cache, groups=())
    header = replace(tape.header, config=replace(tape.header.config, kv_cache=none))
    path = tmp_path / "none.jsonl"
    write_trace(path, header, (), {})
    ran = Ran(capsys, [path], "--single-group", "full")
    assert ran.code == 2
    assert ran.errors == (
        "kvspec: error: no trace matches the filters; scenarios found: life_of_blocks\n"
    )


def test_a_filter_that_selects_nothing_lists_the_scenarios(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    ran = Ran(capsys, [folder], "--scenario", "full")
    assert (ran.code, ran.lines) == (2, [])
    scenarios = "packed, quirk, right, wrong"
    assert ran.errors == (
        f"kvspec: error: no trace matches the filters; scenarios found: {scenarios}\n"
    )


def test_fail_fast_stops_at_the_first_failure(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    ran = Ran(capsys, [folder], "--fail-fast")
    assert ran.code == 1
    assert ran.lines[-2:] == [
        "stopped at the first failure: 2 files not replayed",
        "1 passed, 1 failed",
    ]


def test_the_report_for_programs(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.json"
    assert Ran(capsys, [folder], "--json", target).code == 1
    report = json.loads(target.read_text())
    assert {name: report[name] for name in report if name != "files"} == {
        "implementation": "kvref",
        "profile": "vllm-0.24",
        "passed": 3,
        "failed": 1,
        "left_out": 0,
        "lacks": [],
        "behind_quirks": 29,
        "not_replayed": 0,
    }
    right, wrong, quirk, _ = report["files"]
    assert right == {
        "path": f"{folder}/a_right.jsonl",
        "format": "trace",
        "scenario": "right",
        "seed": 0,
        "passed": True,
        "compared": 34,
        "lacks": [],
        "behind_quirks": 0,
        "quirks": [],
        "mismatch": None,
    }
    assert (quirk["behind_quirks"], quirk["quirks"]) == (29, ["odd"])
    mismatch = wrong["mismatch"]
    assert (mismatch["line"], mismatch["call"]) == (7, "get_computed_blocks")
    (difference,) = mismatch["differences"]
    assert difference["expected"]["num_computed_tokens"] == 4
    assert difference["place"] == ".num_computed_tokens"


def test_the_report_on_standard_output(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    ran = Ran(capsys, [folder], "--json", "-")
    assert json.loads("\n".join(ran.lines))["failed"] == 1
    assert ran.errors.endswith("3 passed, 1 failed\n")


class NoSpecs:
    def merge(self, specs: Any) -> Any:
        return 1


def test_planning_records_are_counted_one_by_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"type": "FullAttentionSpec", "block_size": 1, "num_kv_heads": 1, "head_size": 1}
    answered = {"fn": "merge", "input": {"specs": []}, "output": {**spec, "dtype": "int8"}}
    header = {"type": "header", "format": "kv-cache-planning", "version": 1, "source": "test"}
    lines = [header, *({"id": i, **answered} for i in range(12))]
    path = tmp_path / "planning.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(ReferenceImplementation, "planner", None)
    ran = Ran(capsys, [path])
    assert ran.code == 1
    assert ran.lines == [
        f"{path}: all 12 records fail: kvref has no planner",
        "0 passed, 12 failed",
    ]
    monkeypatch.setattr(ReferenceImplementation, "planner", NoSpecs())
    ran = Ran(capsys, [path])
    assert ran.code == 1
    assert sum(": record " in line for line in ran.lines) == 10
    assert f"{path}: 2 more mismatches (--verbose shows all)" in ran.lines
    ran = Ran(capsys, [path], "-v")
    assert sum(": record " in line for line in ran.lines) == 12
    assert Ran(capsys, [path], "--fail-fast").lines[-1] == "0 passed, 1 failed"
    assert Ran(capsys, [path], "--scenario", "any").code == 2
    target = tmp_path / "report.json"
    Ran(capsys, [path], "--json", target)
    (file,) = json.loads(target.read_text())["files"]
    assert (file["format"], file["failed"], len(file["mismatches"])) == ("planning", 12, 12)


def test_what_cannot_run_ends_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    empty = tmp_path / "empty"
    empty.mkdir()
    late = tmp_path / "late.jsonl"
    late.write_text(SMALL.read_text().replace('"op":"free"', '"op":"fee"', 1))
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(SMALL.read_text().splitlines(keepends=True)[:9]))
    for path, problem in (
        (tmp_path / "nothing", "nothing: no such file"),
        (empty, "empty: no *.jsonl or *.jsonl.gz in this folder"),
        (late, "late.jsonl, line 19, field 'op': unknown operation 'fee'"),
        (cut, "cut.jsonl: cut off: no footer after 8 operations"),
    ):
        ran = Ran(capsys, [path], "--json", target)
        assert ran.code == 2
        assert ran.lines == []
        (line,) = ran.errors.splitlines()
        assert line.startswith("kvspec: error: ")
        assert line.endswith(problem)
    assert not target.exists()
    assert main(["golden", str(SMALL), "--impl", "nobody"]) == 2
    assert "unknown implementation 'nobody'" in capsys.readouterr().err
    assert main(["golden", str(SMALL)]) == 2
    assert "--impl" in capsys.readouterr().err
    assert main(["golden", str(SMALL), "--impl", "kvref", "--single-group", "mamba"]) == 2


def test_what_is_lacking_is_left_out_and_alone_no_success(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ReferenceImplementation().capabilities
    less = replace(whole, name="small", spec_types=whole.spec_types - {FullAttentionSpec})
    monkeypatch.setattr(ReferenceImplementation, "capabilities", less)
    ran = Ran(capsys, [folder])
    assert "no record could be replayed: small lacks FullAttentionSpec" in ran.errors
    assert (ran.code, ran.lines) == (
        2,
        [
            "4 left out: small does not support FullAttentionSpec",
            "0 passed, 0 failed, 4 left out",
        ],
    )
    ran = Ran(capsys, [folder / "a_right.jsonl"], "-v")
    assert ran.lines[0] == f"{folder}/a_right.jsonl: left out, needs FullAttentionSpec"
    before = sorted(folder.rglob("*"))
    assert main(["shrink", str(folder / "b_wrong.jsonl"), "--impl", "kvref"]) == 1
    said = capsys.readouterr().err
    assert "b_wrong.jsonl: left out, small does not support FullAttentionSpec" in said
    assert sorted(folder.rglob("*")) == before
