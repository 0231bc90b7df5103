"""kvref's planner against the shared planning records, their error messages included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcheck.records.planning import replay_planning
from kvref import ReferenceImplementation
from kvspec._json import Where
from kvspec.codec import decode_layers, decode_planning_config
from kvspec.errors import CacheMemoryError
from kvspec.record import PlanningRecord
from kvspec.record_file import read_planning

pytestmark = pytest.mark.shared


def records(shared: Path, name: str) -> Path:
    path = shared / "golden" / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path


def test_all_usual_records_pass(shared: Path) -> None:
    found = replay_planning(records(shared, "planning.jsonl.gz"), ReferenceImplementation())
    assert (found.passed, found.failed, found.num_quirky) == (890, 0, 11)


def test_all_exotic_records_pass(shared: Path) -> None:
    found = replay_planning(records(shared, "planning_exotic.jsonl.gz"), ReferenceImplementation())
    assert (found.passed, found.failed, found.num_quirky) == (249, 0, 0)


@pytest.mark.parametrize("name", ["planning.jsonl.gz", "planning_exotic.jsonl.gz"])
def test_refusals_name_the_recorded_numbers(name: str, shared: Path) -> None:
    compared = 0
    for record in read_planning(records(shared, name)):
        if not isinstance(record, PlanningRecord) or " GiB KV cache" not in (record.message or ""):
            continue
        with pytest.raises(CacheMemoryError) as caught:
            ask(record)
        assert numbers_of(caught.value) == recorded_numbers(str(record.message)), record.id
        compared += 1
    assert compared > 10


def ask(record: PlanningRecord) -> None:
    planner = ReferenceImplementation().planner
    assert planner is not None
    here = Where("record")
    given = record.input
    config = decode_planning_config(given["config"], here)
    memory = given["available_memory"]
    if "workers" in given:
        workers = tuple(decode_layers(layers, here) for layers in given["workers"])
        planner.plan(workers, config, tuple(memory))
    else:
        planner.check_enough_memory(decode_layers(given["layers"], here), config, memory)


def numbers_of(error: CacheMemoryError) -> tuple[float, float, int]:
    gib = 2**30
    return (
        round(error.needed_bytes / gib, 2),
        round(error.available_bytes / gib, 2),
        error.longest_tokens,
    )


def recorded_numbers(message: str) -> tuple[float, float, int]:
    sizes = re.search(r"\(([\d.]+) GiB KV cache.*memory \(([\d.]+) GiB\)", message)
    longest = re.search(r"maximum model length is (\d+)", message)
    assert sizes is not None
    return float(sizes[1]), float(sizes[2]), int(longest[1]) if longest else 0
