"""The shipped models: each can be planned, each number has a source, some are worked out here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvcheck.tools.plans.document import shipped_names, shipped_path
from tests.cases import Case, cases
from tests.plans.files import Run


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
