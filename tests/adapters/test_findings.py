"""The tables of docs/FINDINGS.md: those of the committed reports, each finding with its reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvspec.errors import UnknownImplementationError
from tests.adapters import findings, lives, rows
from tests.adapters.findings import FOLDER, SUBJECTS, kept, read, unexplained
from tests.source import ROOT


def found(cause: str, *requests: str) -> dict[str, Any]:
    """Return a violation as `kvspec check` reports it."""
    operations = [{"op": "free", "req": name, "args": {}} for name in requests]
    return {"rule": "KV-POOL-1", "cause": cause, "test": "much", "operations": operations}


REPORT: dict[str, Any] = dict.fromkeys(findings.KEPT, "") | {
    "left_out": {"a story": ["events"]},
    "violations": [found("KV-POOL-1 a", "r0", "r1"), found("KV-MGR-2 b", "r0")],
}


def test_a_row_says_of_each_wrong_point_of_0_33_whether_its_scheduler_reaches_it() -> None:
    assert list(rows.without_row(FOLDER, read("vllm-0.33")[1])) == []
    assert list(rows.without_row(FOLDER, {"c": "Wrong: new", "d": "Order: no"})) == ["Wrong: new"]
    reports = {f"vllm-0.33-{row['report']}.md" for row in rows.read_rows(FOLDER) if "report" in row}
    assert reports == {path.name for path in (ROOT / "docs/reports").glob("vllm-0.33-*.md")}


def test_the_page_counts_what_the_scheduler_of_0_33_reaches_and_each_has_a_report() -> None:
    reached = [row for row in rows.read_rows(FOLDER) if row["scheduler"] == "yes"]
    assert all("report" in row for row in reached)
    page = (ROOT / findings.PAGE).read_text(encoding="utf-8")
    assert f"{len(reached)} faults that its own scheduler reaches" in page


@pytest.mark.parametrize("name", SUBJECTS)
def test_each_finding_of_a_committed_report_has_a_reason_of_some_kind(name: str) -> None:
    report, reasons = read(name)
    assert unexplained(name) == []
    kinds = {reason.partition(":")[0] for reason in reasons.values()}
    assert kinds <= set(findings.KINDS)
    assert report["version"]


def test_each_rule_that_lives_found_broken_has_a_reason() -> None:
    assert list(lives.unexplained(FOLDER)) == []


def test_a_finding_without_a_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.json").write_text(json.dumps(kept(REPORT)))
    (tmp_path / "x.toml").write_text('[[known]]\ncause = "KV-POOL-1 a"\nreason = ""\n')
    monkeypatch.setattr(findings, "FOLDER", tmp_path)
    assert unexplained("x") == [
        "x: KV-MGR-2 b has no reason",
        "x: KV-POOL-1 a has no reason",
    ]


def test_a_report_is_kept_without_what_can_be_had_again() -> None:
    report = kept(REPORT)
    assert report["violations"][0]["story"] == ["free('r0')", "free('r1')"]
    assert "test" not in report["violations"][0]
    assert report["left_out"] == 1


ASKED: dict[str, tuple[str, str, str]] = {
    "vllm": ("kvcheck.adapters.vllm:scheduler_view", "identity", "default"),
    "vllm-0.33": ("kvcheck.adapters.vllm:scheduler_view", "identity", "vllm-0.33"),
    "nano-vllm": ("kvcheck.adapters.nanovllm:implementation", "safety", "default"),
}


@pytest.mark.deep
@pytest.mark.parametrize("seed", ["1", "2"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_an_engine_that_is_here_is_as_its_file_says(name: str, seed: str) -> None:
    """Compare vectors and directed checks under several seeds.

    The hash seed is Python's: vLLM keeps keys in sets, whose order is that of events.
    """
    implementation, level, profile = ASKED[name]
    try:
        found = find_implementation(implementation)
    except UnknownImplementationError as error:
        pytest.skip(str(error))
    here, told = found.capabilities.version.partition("+")[0], read(name)[0]["version"]
    if found.capabilities.name == "vllm" and here != told:
        pytest.skip(f"vLLM {here} is here, and the file is about {told}")
    options = ["--level", level, "--profile", profile, "--budget", "directed", "--seed", seed]
    expect = ["--expect", str(FOLDER / f"{name}.toml")]
    kvspec = [sys.executable, "-W", "ignore", "-m", "kvcheck.cli", "check", implementation]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([*kvspec, *options, *expect], env=environment, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
