"""Arguments of the monitor, its page, and its memory."""

from __future__ import annotations

import copy
import gc
import os
import re
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvcheck
from kvcheck.watch import Monitor
from kvref.implementation import ReferenceImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.commands import kvspec, python
from tests.monitor.twins import Engine, config
from tests.source import ROOT

REFERENCE = ReferenceImplementation()


def test_copies_are_not_watched() -> None:
    monitor = kvcheck.monitor(REFERENCE.create(config()))
    clone = REFERENCE.clone(monitor)
    assert not isinstance(clone, Monitor)
    request = REFERENCE.make_request(monitor, RequestInput("r", range(6)))
    monitor.allocate_slots(request, 6)
    assert clone.num_free_blocks == 9
    assert not isinstance(copy.deepcopy(monitor), Monitor)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"every": 1.5}, "every"),
        ({"history": 0}, "history"),
        ({"on_violation": "log"}, "on_violation"),
        ({"manager": object()}, "manager"),
    ],
)
def test_arguments_out_of_their_domain_are_refused(arguments: dict[str, Any], field: str) -> None:
    given = {"manager": REFERENCE.create(config()), **arguments}
    with pytest.raises(InvalidArgumentError) as found:
        kvcheck.monitor(**given)
    assert found.value.field == field


def test_importing_the_package_does_not_import_it() -> None:
    code = (
        "import sys, kvcheck; before = 'kvcheck.watch' in sys.modules; kvcheck.monitor;"
        " print(before, sorted({'hypothesis', 'click', 'rich', 'kvref'} & set(sys.modules)))"
    )
    done = python("-c", code, check=True)
    assert done.stdout == "False []\n"
    with pytest.raises(AttributeError, match="no attribute 'observe'"):
        _ = kvcheck.observe  # type: ignore[attr-defined]  # that is the point


TEXT = (ROOT / "docs/monitor.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "KVSPEC_MONITOR_DIR": str(tmp_path)}
    done = python("-c", EXAMPLE, folder=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", EXAMPLE, re.MULTILINE)
    record = tmp_path / "kvspec-violation-KV-POOL-15.jsonl"
    (command,) = re.findall(r"^\$ kvspec (.*)$", TEXT, re.MULTILINE)
    assert record.name in command
    replay = kvspec(tmp_path, *command.split())
    assert replay.returncode == 1, replay.stderr


@dataclass(frozen=True)
class Held:
    measured: int
    estimated: int


def most_held(steps: tuple[int, int], every: int, history: int) -> tuple[Held, Held]:
    """Return the most memory held during the first of these steps, and during the second."""
    monitor: Monitor = kvcheck.monitor(
        REFERENCE.create(config(), check_invariants=False), every, history=history
    )
    engine = Engine(REFERENCE, monitor)
    engine.run(2)  # what is imported and cached once is not the monitor's
    tracemalloc.start()
    try:
        found = []
        for count in steps:
            measured = 0
            for _ in range(count // 5):
                engine.run(5)
                gc.collect()  # unreachable objects are not held, though not yet freed
                measured = max(measured, tracemalloc.get_traced_memory()[0])
            found.append(Held(measured, monitor.report().peak_memory_bytes))
    finally:
        tracemalloc.stop()
    assert monitor.report().violation is None
    return found[0], found[1]


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.deep)])
def test_a_longer_run_holds_no_more(every: int) -> None:
    early, late = most_held((60, 100), every, history=40)
    assert late.measured < 1.25 * early.measured
    assert late.estimated < 1.25 * early.estimated


def test_the_measure_sees_what_grows() -> None:
    early, late = most_held((20, 60), 10, history=1_000_000)
    assert late.measured > 2 * early.measured
    assert late.estimated > 2 * early.estimated


@pytest.mark.deep
def test_the_estimate_is_of_the_right_size() -> None:
    _, late = most_held((20, 30), 1, history=100)
    assert late.measured / 3 < late.estimated < late.measured * 3
