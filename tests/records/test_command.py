"""`kvspec golden`: what it replays, what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.records.select import shipped_records
from kvref import ReferenceImplementation
from kvspec.record_file import write_trace
from kvspec.specs import FullAttentionSpec
from tests.cases import Case, cases
from tests.commands import said_by
from tests.records.tape import Tape

SMALL = shipped_records() / "life_of_blocks.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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
    text = SMALL.read_text()
    (tmp_path / "late.jsonl").write_text(text.replace('"op":"free"', '"op":"fee"', 1))
    (tmp_path / "cut.jsonl").write_text("".join(text.splitlines(keepends=True)[:9]))
    (tmp_path / "empty").mkdir()
    spec = {"type": "FullAttentionSpec", "block_size": 1, "num_kv_heads": 1, "head_size": 1}
    answered = {"fn": "merge", "input": {"specs": []}, "output": {**spec, "dtype": "int8"}}
    header = {"type": "header", "format": "kv-cache-planning", "version": 1, "source": "test"}
    lines = [header, *({"id": number, **answered} for number in range(12))]
    many = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "many.jsonl").write_text(many)
    return tmp_path


def test_without_a_path_the_shipped_records_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shipped = len(list(shipped_records().rglob("*.jsonl")))
    said = said_by("golden --impl kvref", capsys)
    assert said == [f"{shipped} passed, 0 failed", "exit code 0"]


class NoSpecs:
    def merge(self, specs: Any) -> Any:
        return 1


@pytest.mark.parametrize("case", cases(__file__, "golden.txt"), ids=str)
def test_what_is_printed_of_records(
    case: Case,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planner = None if case.name == "who has no planner" else NoSpecs()
    monkeypatch.setattr(ReferenceImplementation, "planner", planner)
    if "lacking" in case.name:
        whole = ReferenceImplementation().capabilities
        less = replace(whole, name="small", spec_types=whole.spec_types - {FullAttentionSpec})
        monkeypatch.setattr(ReferenceImplementation, "capabilities", less)
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    said = said_by(f"golden {case.given[0]} --impl kvref", capsys)
    case.expect(re.sub(r"dataclasses\.py:\d+", "dataclasses.py:…", line) for line in said)
    assert sorted(folder.rglob("*")) == before


def test_a_record_of_what_is_lacking_is_not_shrunk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ReferenceImplementation().capabilities
    less = replace(whole, name="small", spec_types=whole.spec_types - {FullAttentionSpec})
    monkeypatch.setattr(ReferenceImplementation, "capabilities", less)
    before = sorted(folder.rglob("*"))
    assert main(["shrink", str(folder / "records/b_wrong.jsonl"), "--impl", "kvref"]) == 1
    said = capsys.readouterr().err
    assert "b_wrong.jsonl: left out, small does not support FullAttentionSpec" in said
    assert sorted(folder.rglob("*")) == before
