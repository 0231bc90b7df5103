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
from tests.adapters import findings, rows
from tests.adapters.findings import (
    FOLDER,
    SUBJECTS,
    filled,
    kept,
    matrix,
    read,
    story_of,
    subject,
    unexplained,
)
from tests.source import ROOT

REPORT: dict[str, Any] = {
    "subject": "x",
    "implementation": "x:implementation",
    "version": "1.2",
    "level": "safety",
    "seed": 3,
    "conforms": False,
    "rules": {
        "KV-POOL-1": "broken",
        "KV-POOL-2": "unbroken",
        "KV-MGR-1": "does not apply",
        "KV-MGR-2": "in doubt",
    },
    "counts": {"unbroken": 1, "broken": 1, "in doubt": 1, "not exercised": 0, "does not apply": 1},
    "directed": 4,
    "left_out": {"a story": ["events"]},
    "random": 5,
    "violations": [
        {
            "rule": "KV-POOL-1",
            "cause": "KV-POOL-1 a",
            "program": "p",
            "expected": "1",
            "observed": "2 | 3",
            "test": "much",
            "operations": [
                {"op": "free", "req": "r0", "args": {}},
                {"op": "free", "req": "r1", "args": {}},
            ],
        },
        {
            "rule": "KV-MGR-2",
            "cause": "KV-MGR-2 b",
            "program": "q",
            "expected": "1",
            "observed": "2",
            "operations": [{"op": "free", "req": "r0", "args": {}}],
        },
    ],
}
REASONS = {"KV-POOL-1 a": "Wrong: it counts.", "KV-MGR-2 b": "Wrong: it counts."}
PLACE = "a\n<!-- begin x -->\nold\n<!-- end x -->\n"


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


def test_a_subject_has_one_line_for_each_reason_with_its_smallest_story() -> None:
    run, head, found, doubt = subject(kept(REPORT), REASONS)
    for words in ("level *safety*", "1 broken", "(1 left out)"):
        assert words in run
    assert head == "**Wrong, 1 causes:**"
    assert found == (
        "- It counts. (KV-POOL-1, KV-MGR-2) <details><summary>smallest story</summary>"
        "`free('r0')`<br>expected: 1<br>observed: 2</details>"
    )
    assert doubt == "In doubt: KV-MGR-2."


def test_what_is_not_wrong_is_folded() -> None:
    parts = list(subject(kept(REPORT), {"KV-POOL-1 a": "Order: o"}))
    assert parts[1] == "<details><summary>2 differences of other kinds</summary>"
    lines = parts[2].splitlines()
    assert [line.partition(" (KV")[0] for line in lines] == ["- Order: o", "- No reason given"]
    assert parts[-1] == "</details>"


def test_a_story_is_shown_as_it_stands_and_without_the_policy() -> None:
    assert story_of({"story": [], "program": "q"}) == "check *q*"
    policy = "; policy=Policy(a=1, b=[2, … (486 characters)"
    told = {"story": ["free('r')"], "configuration": f"9 blocks{policy}; eagle"}
    assert story_of(told) == "9 blocks; eagle: `free('r')`"
    assert findings._cut("[<class 'X'>]\n*a*") == "\\[&lt;class 'X'&gt;\\] \\*a\\*"


def test_the_matrix_counts_the_rules_of_each_chapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(findings, "SUBJECTS", {"x": "X"})
    reports = {"x": (kept(REPORT), REASONS)}
    lines = matrix(reports).splitlines()
    assert lines[0] == "| chapter | X 1.2 |"
    assert lines[2:] == [
        "| KV-POOL The block pool | 1 of 2, 1 broken |",
        "| KV-MGR The manager | 0 of 1 |",
        "| **all** | **1 of 3, 1 broken** |",
        "| of these broken: wrong | 1 |",
    ]


def test_tables_replace_those_before() -> None:
    once = filled(PLACE, "x", "new")
    assert "old" not in once
    assert filled(once, "x", "new") == once
    with pytest.raises(ValueError, match="lacks"):
        filled("no place", "x", "")


ASKED: dict[str, tuple[str, str, str]] = {
    "vllm": ("kvcheck.adapters.vllm:scheduler_view", "identity", "default"),
    "vllm-0.33": ("kvcheck.adapters.vllm:scheduler_view", "identity", "vllm-0.33"),
    "sglang": ("kvcheck.adapters.sglang:implementation", "safety", "default"),
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
    here, told = found.capabilities.version, read(name)[0]["version"]
    if found.capabilities.name == "vllm" and here != told:
        pytest.skip(f"vLLM {here} is here, and the file is about {told}")
    options = ["--level", level, "--profile", profile, "--budget", "directed", "--seed", seed]
    expect = ["--expect", str(FOLDER / f"{name}.toml")]
    kvspec = [sys.executable, "-W", "ignore", "-m", "kvcheck.cli", "check", implementation]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([*kvspec, *options, *expect], env=environment, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
