"""Values of wrong types, which no index accepts and the notation cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvfast
import kvref
from kvspec.errors import InvalidArgumentError
from kvspec.events import Event
from kvspec.fleet import Batch, EngineState, GroupPrefix, Heard, MediumCleared, PrefixIndex
from tests.fleet.traffic import index_of, stored

A, B, C = b"a", b"b", b"c"


@pytest.fixture(params=["kvref", "kvfast"])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    name = request.param
    return index_of(kvref.implementation() if name == "kvref" else kvfast.implementation())


def tell(
    index: PrefixIndex, number: int, *events: Event | MediumCleared, time_s: float | None = None
) -> Heard:
    """Apply a batch of e, by default one second after the previous one."""
    return index.hear("e", Batch(number, float(number) if time_s is None else time_s, events))


def has(index: PrefixIndex, engine: str = "e") -> dict[Any, int]:
    """Return the copies of each hash in group 0 on the device."""
    return {key[2]: n for key, n in index.state(engine).keys.items() if key[:2] == ("GPU", 0)}


HOSTILE: dict[str, Callable[[PrefixIndex], object]] = {
    "number": lambda index: index.hear("e", Batch(-1, 0.0, ())),
    "number of a state": lambda index: index.restore("e", EngineState(-2, 0.0, {})),
    "time_s": lambda index: index.hear("e", Batch(0, float("nan"), ())),
    "time_s of a state": lambda index: index.restore("e", EngineState(0, float("inf"), {})),
    "batch": lambda index: index.hear("e", (0, 0.0, ())),  # type: ignore[arg-type]
    "state": lambda index: index.restore("e", {}),  # type: ignore[arg-type]
    "events": lambda index: index.hear("e", Batch(0, 0.0, (None,))),  # type: ignore[arg-type]
    "events without a hash": lambda index: tell(index, 0, stored("a")),  # type: ignore[arg-type]
    "group": lambda index: tell(index, 0, stored(A, group=-1)),
    "medium": lambda index: tell(index, 0, stored(A, medium=None)),  # type: ignore[arg-type]
    "keys": lambda index: index.restore("e", EngineState(0, 0.0, {("GPU", 0, A): 0})),
    "engine": lambda index: index.hear(5, Batch(0, 0.0, ())),  # type: ignore[arg-type]
    "engine never heard of": lambda index: index.state("e"),
    "engine with a gap": lambda index: index.missing("e"),
    "hashes": lambda index: index.prefixes("abc"),  # type: ignore[arg-type]
    "hashes that are none": lambda index: index.prefixes([None]),  # type: ignore[list-item]
}


@pytest.mark.rule("KV-FLEET-9")
@pytest.mark.parametrize("field", HOSTILE)
def test_what_is_illegal_is_refused(index: PrefixIndex, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        HOSTILE[field](index)
    assert raised.value.field == field.split()[0]
    assert index.engines == ()


@pytest.mark.rule("KV-FLEET-17", "KV-FLEET-9")
@pytest.mark.parametrize(
    "groups",
    [
        (),
        None,
        [0],
        [GroupPrefix(-1, (), 4)],
        [GroupPrefix(0, 7, 4)],  # type: ignore[arg-type]  # illegal on purpose
        [GroupPrefix(0, (), 0)],
        [GroupPrefix(0, (), 4, -1)],
        [GroupPrefix(0, (), 4), GroupPrefix(0, (A,), 4)],
    ],
)
def test_what_is_no_question_is_refused(index: PrefixIndex, groups: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        index.hits(groups)
