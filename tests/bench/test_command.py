"""`kvspec bench`: tables, JSON, and one line for whatever is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.tools.bench.calls import Calls, contract_calls
from kvcheck.tools.bench.script import Plan
from kvref import ReferenceImplementation
from kvspec.interface import Capabilities, KVCacheManager
from tests.bench.toy import PLAN, shorter_hits


class Broken(ReferenceImplementation):
    def bench_calls(self, manager: KVCacheManager) -> Calls:
        return shorter_hits(contract_calls(self, manager))


class Hashless(ReferenceImplementation):
    @property
    def capabilities(self) -> Capabilities:
        return replace(ReferenceImplementation().capabilities, hash_functions=frozenset())


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(sections: Collection[str]) -> Plan:
        return Plan(PLAN.cases if "prompts" in sections else (), 2)

    monkeypatch.setattr("kvcheck.cli.bench.full_plan", plan)
    monkeypatch.setattr("kvcheck.cli.bench.quick_plan", plan)


def test_the_tables_name_phases_units_cases_and_subjects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = "kvref:implementation"
    assert main(["bench", "--impl", "kvref", "--impl", other, "--quick"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for title in (
        *("look up, ns per request", "allocate + cache, ns per block", "free, ns per block"),
        *("append, ns per request", "decode step, ns per request", "a cold pool of 129"),
        *("2 × 64 tokens, 50% cached", "3 running", "prefill chunk, ns per block"),
        *("kvref, batched: kvref", "batched calls over arrays of handles"),
        *("ratio: time of kvref / time of the row", "garbage collector off while timing"),
        f"{other}: kvref",
    ):
        assert title in shown.out
    assert "cached" not in shown.out.partition("look up, ns")[0].replace("0% cached", "")
    assert "\x1b" not in shown.out


def test_a_trace_is_replayed_beside_the_rest_or_alone(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "--impl", "kvref", "--trace", "demo", "--requests", "3"]
    assert main([*args, "--only", "replay"]) == 0
    shown = capsys.readouterr().out
    assert "demo, 3 requests: ms per replay" in shown
    assert "manager, in all" in shown
    assert "look up, ns per request" not in shown
    assert main(args) == 0
    assert "look up, ns per request" in capsys.readouterr().out


def test_the_tables_of_a_document_can_be_made_again(tmp_path: Path) -> None:
    document = tmp_path / "out.json"
    args = ["bench", "--impl", "kvref", "--trace", "demo", "--requests", "2"]
    assert main([*args, "--json", str(document)]) == 0
    command = "kvspec bench --impl kvref --trace demo --requests 2"
    assert json.loads(document.read_text("utf-8"))["command"] == command
    script = [sys.executable, str(ROOT / "bench/tables.py"), str(document)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    for title in ("Prompts, hot", "Decoding", "The pool grows, cold", "A whole trace"):
        assert f"### {title}\n" in done.stdout
    for title in ("look up again, ns per request", "decode step, ns per request", "ms per replay"):
        assert f"| {title} | kvref | kvref, batched | ratio |\n|---|---:|---:|---:|" in done.stdout
    assert "| 2 × 64 tokens, 50 % cached | " in done.stdout
    assert f"    {command}\n" in done.stdout


def test_json_goes_to_a_file_or_alone_to_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench", "--impl", "kvref", "--json", "-"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["format"], document["version"]) == ("kvspec-bench", 2)
    assert document["command"] == "kvspec bench --impl kvref"
    assert "look up, ns per request" in shown.err
    path = tmp_path / "out.json"
    monkeypatch.setattr("kvcheck.cli.bench.installed_implementations", lambda: ("kvref",))
    assert main(["bench", "--json", str(path)]) == 0
    again = json.loads(path.read_text("utf-8"))
    assert again.keys() == document.keys()
    looked_up = ("hash", "look up", "hash + look up", "look up again", "allocate + cache", "admit")
    assert [each["phase"] for each in again["measurements"]] == [
        *(*looked_up, "free"),
        *(*looked_up, "prefill chunk", "free"),
        *(*looked_up, "free"),
        *("append", "decode step"),
    ]


def test_unequal_work_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--impl", "kvref", "--impl", "tests.bench.test_command:Broken"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "times of unequal work are not compared" in shown.err
    assert len(shown.err.splitlines()) == 1
