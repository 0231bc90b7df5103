"""`kvspec plan`, the shipped models, and layers of other kinds, as worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.tools.plans.document import shipped_names, shipped_path
from kvref import ReferenceImplementation
from kvspec.errors import CacheMemoryError, UnsupportedError
from kvspec.planning import Planner, PlanningConfig
from kvspec.specs import FullAttentionSpec, SinkFullAttentionSpec
from tests.cases import Case, cases
from tests.plans.files import EXPLICIT, SMALL, Run, altered, written
from tests.plans.properties import CHECKS
from tests.plans.properties import Case as Planned


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shipped_path(name).read_text(encoding="utf-8"))
    return found


def numbers(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(item, f"{place}.{name}" if place else name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def test_there_are_at_least_ten() -> None:
    assert len(shipped_names()) >= 10
    kinds = [kind for name in shipped_names() for kind in document(name)["model"]["kinds"].values()]
    assert {"full", "mla", "sliding_window", "chunked_local", "cross", "mamba1"} <= {
        kind["type"] for kind in kinds
    }


@pytest.mark.parametrize("name", shipped_names())
def test_every_number_has_a_source(name: str) -> None:
    found = document(name)
    described = {part: found.get(part, {}) for part in ("model", "engine", "parallel")}
    places = set(numbers({**described, "memory_gib": found["memory_gib"]}, ""))
    if len(found["model"]["pattern"]) > 1:
        places.add("model.pattern")
    assert places <= set(found["source"])
    assert all(text for text in found["source"].values())
    assert isinstance(found["unconfirmed"], list)
    assert found["name"] == name


@pytest.mark.parametrize("name", shipped_names())
def test_every_model_can_be_planned(run: Run, name: str) -> None:
    ran = run(name)
    assert (ran.code, ran.err) == (0, "")
    found = run(name, "--json", "-").json
    assert found["max_concurrency"] >= 1
    assert sum(group["num_layers"] for group in found["groups"]) == sum(
        1 if isinstance(item, str) else len(item) for item in pattern(name)
    )


def pattern(name: str) -> list[Any]:
    model = document(name)["model"]
    repeated = model["pattern"] * model["num_layers"]
    return list(repeated[: model["num_layers"]])


@pytest.mark.parametrize("case", cases(__file__, "models.txt"), ids=str)
def test_what_is_shown_of_a_model_was_worked_out_by_hand(run: Run, case: Case) -> None:
    given = [line for line in case.given if not line.startswith("#")]
    ran = run(*given[0].split())
    assert (ran.code, ran.err) == (0, "")
    case.expect(ran.out.splitlines())


@pytest.fixture
def planner() -> Planner:
    """kvref's: any would do, pages are pages."""
    found = find_implementation("kvref").planner
    assert isinstance(found, Planner)
    return found


@pytest.mark.rule("KV-PLAN-9", "KV-PLAN-20", "KV-FULL-8")
def test_the_sinks_of_one_worker_count_on_the_others() -> None:
    implementation = ReferenceImplementation()
    planner = implementation.planner
    assert isinstance(planner, Planner)
    sink = SinkFullAttentionSpec(2, 1, 8, "float16", sink_len=2)
    workers = ((), (("layer0", sink),), (("layer1", FullAttentionSpec(2, 1, 8, "float16")),))
    config = PlanningConfig(1, max_num_batched_tokens=1, block_size=4, enable_caching=False)
    with pytest.raises(CacheMemoryError, match=r"0\.00 GiB"):
        planner.plan(workers, config, (1, 192, 128))
    enough = Planned(workers, config, (1, 192, 192))
    CHECKS["an_accepted_plan_serves_a_request_of_full_length"](implementation, planner, enough)


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
