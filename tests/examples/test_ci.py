"""The workflow that engines copy: it is YAML, and its two commands run as written there."""

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
ACTION: dict[Any, Any] = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
(USE,) = (step for step in WORKFLOW["jobs"]["contract"]["steps"] if "examples/ci" in str(step))


def command(program: str) -> dict[str, Any]:
    (found,) = (step for step in STEPS if step.get("run", "").startswith(f"{program} "))
    return found


def settings(step: dict[str, Any], **given: str) -> dict[str, str]:
    """Return the environment of a step with inputs given or by default."""
    inputs = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | given
    found = {}
    for name, value in step["env"].items():
        (member,) = re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value).groups()  # type: ignore[union-attr]
        found[name] = inputs[member]
    return found


def run(
    step: dict[str, Any], folder: Path, before: str = "", **given: str
) -> subprocess.CompletedProcess[str]:
    """Run the step as a workflow does, without random programs.

    As tests, run only some rules, since time matters here.
    """
    (folder / "contract").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **settings(step, budget="directed", **given)}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", before + step["run"].replace("-n auto", "-n 0")],
        cwd=folder,
        env={**env, "PATH": path, "PYTEST_ADDOPTS": "--kv-rules=KV-POOL-*"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("kvspec", "installed"),
    [
        ("", "{action}/../..[cli]"),
        ("wheels/kvspec-0.1.0-py3-none-any.whl",) * 2,
        ("git+https://host/kvspec@v1", "kvspec[cli] @ git+https://host/kvspec@v1"),
    ],
)
def test_what_is_installed_is_there(kvspec: str, installed: str, tmp_path: Path) -> None:
    step = STEPS[0]
    place = f'pip() {{ printf "%s\\n" "$@"; }}; GITHUB_ACTION_PATH="{FOLDER}"; '
    done = run(step, tmp_path, place, impl="kvref", kvspec=kvspec)
    assert done.returncode == 0, done.stderr
    first, what, *others = done.stdout.splitlines()
    assert (first, others) == ("install", ["pytest", "pytest-xdist"])
    assert what.startswith(installed.format(action=FOLDER))
    if not kvspec:
        assert (Path(what.partition("[")[0]) / "pyproject.toml").samefile(ROOT / "pyproject.toml")


def test_the_workflow_gives_the_action_what_it_takes() -> None:
    assert Path(USE["uses"]).parts[-2:] == FOLDER.parts[-2:]
    assert set(USE["with"]) <= set(ACTION["inputs"])
    assert all("default" in each or each.get("required") for each in ACTION["inputs"].values())
    assert all(step.get("shell") == "bash" for step in STEPS if "run" in step)


@pytest.mark.parametrize("program", ["pytest", pytest.param("kvspec", marks=pytest.mark.deep)])
def test_a_step_of_the_workflow_passes_for_the_reference(program: str, tmp_path: Path) -> None:
    done = run(command(program), tmp_path, impl="kvref")
    assert done.returncode == 0, done.stdout + done.stderr
    (uploaded,) = (step["with"]["path"] for step in STEPS if "upload" in step.get("uses", ""))
    left = re.findall(r"[\w/]+\.(?:xml|html)", command(program)["run"])
    assert left
    for name in left:
        assert (tmp_path / name).is_relative_to(tmp_path / uploaded)
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("program", ["pytest", "kvspec"])
def test_a_step_fails_for_a_broken_implementation_and_still_leaves_its_report(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "leaky.py").write_text(
        "from tests.mistakes import mistaken\n"
        "def implementation():\n    return mistaken('LeaksUnhashedBlocks', audits=True)\n"
    )
    path = f'export PYTHONPATH="{ROOT}:$PYTHONPATH"; '
    done = run(command(program), tmp_path, path, impl="leaky:implementation")
    assert done.returncode == 1, done.stdout + done.stderr
    (report,) = (tmp_path / "contract").glob("*.xml")
    cases = ET.parse(report).iter("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert "KV-POOL-15" in failed


def test_the_report_is_made_and_kept_also_when_the_tests_fail() -> None:
    """Check that later steps always run, and that the night's budget exists."""
    from kvcheck.judge.options import BUDGETS
    from kvcheck.pytest_plugin import LEVELS

    names = [step.get("name") for step in STEPS]
    behind = STEPS[names.index("One test per rule") + 1 :]
    assert behind
    assert all(step["if"] == "always()" for step in behind)
    assert {USE["with"]["level"], ACTION["inputs"]["level"]["default"]} <= set(LEVELS)
    assert set(re.findall(r"'(\w+)'", USE["with"]["budget"])) - {"schedule"} <= set(dict(BUDGETS))


def test_the_page_names_options_that_exist() -> None:
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
