"""Refusals of the monitor, copies of it, and importing it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import kvcheck
from kvcheck.watch import Monitor
from kvref.implementation import ReferenceImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.commands import python
from tests.monitor.twins import config

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
