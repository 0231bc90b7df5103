"""The workflow that engines copy: it is YAML, and its two commands run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.source import ROOT

FOLDER = ROOT / "examples/ci"
WORKFLOW: dict[Any, Any] = yaml.safe_load((FOLDER / "kv-contract.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["contract"]["steps"]


def command(program: str) -> str:
    """The step that runs a program."""
    (found,) = (step["run"] for step in STEPS if step.get("run", "").startswith(f"{program} "))
    return str(found)


def run(line: str, folder: Path, implementation: str) -> subprocess.CompletedProcess[str]:
    """The step as the workflow runs it, for this implementation and without random programs.

    As tests only some rules, since time matters here.
    """
    (folder / "contract").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**WORKFLOW["env"], "KV_IMPL": implementation, "KV_BUDGET": "directed"}
    return subprocess.run(
        ["bash", "-e", "-c", line.replace("-n auto", "-n 0")],
        cwd=folder,
        env={**os.environ, **settings, "PATH": path, "PYTEST_ADDOPTS": "--kv-rules=KV-POOL-*"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("program", ["pytest", "kvspec"])
def test_a_step_of_the_workflow_passes_for_the_reference(program: str, tmp_path: Path) -> None:
    """With options that exist, and what it leaves behind is uploaded."""
    done = run(command(program), tmp_path, "kvref")
    assert done.returncode == 0, done.stdout + done.stderr
    (uploaded,) = (step["with"]["path"] for step in STEPS if "upload" in step.get("uses", ""))
    left = re.findall(r"[\w/]+\.(?:xml|html)", command(program))
    assert left
    for name in left:
        assert (tmp_path / name).is_relative_to(tmp_path / uploaded)
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("program", ["pytest", "kvspec"])
def test_a_step_fails_for_a_broken_implementation_and_still_leaves_its_report(
    program: str, tmp_path: Path
) -> None:
    """A leak; the report names its rule."""
    (tmp_path / "leaky.py").write_text(
        "from tests.mistakes import mistaken\n"
        "def implementation():\n    return mistaken('LeaksUnhashedBlocks', audits=True)\n"
    )
    line = f'export PYTHONPATH="{ROOT}:$PYTHONPATH"; {command(program)}'
    done = run(line, tmp_path, "leaky:implementation")
    assert done.returncode == 1, done.stdout + done.stderr
    (report,) = (tmp_path / "contract").glob("*.xml")
    cases = ET.parse(report).iter("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert "KV-POOL-15" in failed


def test_the_report_is_made_and_kept_also_when_the_tests_fail() -> None:
    """The steps behind the tests run always, and the night's budget is one that exists."""
    from kvcheck.pytest_plugin import BUDGETS, LEVELS

    names = [step.get("name") for step in STEPS]
    behind = STEPS[names.index("One test per rule") + 1 :]
    assert behind
    assert all(step["if"] == "always()" for step in behind)
    assert WORKFLOW["env"]["KV_LEVEL"] in LEVELS
    assert set(re.findall(r"'(\w+)'", WORKFLOW["env"]["KV_BUDGET"])) - {"schedule"} <= set(BUDGETS)


def test_the_page_names_options_that_exist() -> None:
    """Of the plugin, of the command and of pytest."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    helps = [
        subprocess.run(
            [sys.executable, "-m", *module.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for module in ("pytest", "kvcheck.cli check")
    ]
    named = set(re.findall(r"--[a-z][a-z-]+", text))
    assert named
    assert {option for option in named if option not in "".join(helps)} == set()
