"""`kvspec plan`: what it shows, its JSON, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.tools.plans.document import shipped_names
from kvref import ReferenceImplementation
from kvspec.errors import UnsupportedError
from tests.cases import Case, cases
from tests.plans.files import EXPLICIT, SMALL, Run, altered, written


@pytest.mark.parametrize("case", cases(__file__, "commands.txt"), ids=str)
def test_what_the_command_shows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    given = [line for line in case.given if not line.startswith("#")]
    monkeypatch.chdir(tmp_path)
    base, _, content = given[0].partition(" ")
    if base == "text":
        Path("m.json").write_text(content, "utf-8")
    else:
        written(Path(), altered({"small": SMALL, "layers": EXPLICIT}[base], json.loads(content)))
    ran = run(*" ".join(given[1:]).split())
    case.expect([*ran.out.splitlines(), *ran.err.splitlines(), f"exit code {ran.code}"])
    if "--json" in given[-1]:
        assert ran.json["name"] == "m"


def test_the_list_names_every_model(run: Run) -> None:
    lines = run("--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_names())
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("case", cases(__file__, "bad.txt"), ids=str)
def test_bad_models_and_layers_are_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    changes = {
        place: json.loads(value) for place, _, value in (line.partition(" ") for line in case.given)
    }
    if case.name.startswith("layers"):
        document = altered(EXPLICIT, {**changes, "memory_bytes": 10**6})
    else:
        document = altered(SMALL, changes)
    monkeypatch.chdir(tmp_path)
    ran = run(written(Path(), document))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    case.expect(ran.err.splitlines())


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"[" * 100_000, ": nested too deeply"), (b"\xff", "not UTF-8 at byte 0")],
)
def test_files_that_are_no_text(run: Run, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    ran = run(path)
    assert ran.code == 2
    assert says in ran.err


class OnlyPlanning(ReferenceImplementation):
    def create(self, *arguments: Any, **members: Any) -> Any:
        raise UnsupportedError("managers", "this one")


class Unplanning:
    def __init__(self) -> None:
        self.inner = ReferenceImplementation()
        self.planner = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_without_a_planner_nobody_can_plan(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SMALL)
    assert "unknown implementation 'x'" in run(path, "--impl", "x").err
    monkeypatch.setattr("kvcheck.cli._plans.installed_implementations", lambda: ("broken",))
    assert "no installed implementation can plan" in run(path).err
