"""The examples of spec/rules/fleet.md, for both indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvfast
import kvref
from kvspec.errors import InvalidArgumentError
from kvspec.events import AllBlocksCleared, Event
from kvspec.fleet import Batch, EngineState, GroupPrefix, Heard, MediumCleared, PrefixIndex
from tests.fleet.machine import index_of, removed, stored

A, B, C = b"a", b"b", b"c"


@pytest.fixture(params=["kvref", "kvfast"])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    name = request.param
    return index_of(kvref.implementation() if name == "kvref" else kvfast.implementation())


def tell(
    index: PrefixIndex, number: int, *events: Event | MediumCleared, time_s: float | None = None
) -> Heard:
    """A batch of e, by default one second after the one before."""
    return index.hear("e", Batch(number, float(number) if time_s is None else time_s, events))


def has(index: PrefixIndex, engine: str = "e") -> dict[Any, int]:
    """The copies of each hash, of group 0 on the device."""
    return {key[2]: n for key, n in index.state(engine).keys.items() if key[:2] == ("GPU", 0)}


@pytest.mark.rule("KV-FLEET-1")
def test_what_waited_is_applied_when_its_turn_comes(index: PrefixIndex) -> None:
    assert [tell(index, number) for number in (0, 1)] == [Heard.APPLIED] * 2
    assert tell(index, 3, removed(A)) == Heard.WAITING
    assert tell(index, 2, stored(A, B)) == Heard.APPLIED
    assert has(index) == {B: 1}
    assert index.state("e").number == 3


@pytest.mark.rule("KV-FLEET-2")
def test_a_batch_counts_once(index: PrefixIndex) -> None:
    tell(index, 0, stored(A))
    assert [tell(index, 0, stored(A)) for _ in range(2)] == [Heard.KNOWN] * 2
    assert tell(index, 1, stored(A), time_s=-1.0) == Heard.KNOWN  # from before a restart
    assert tell(index, 5) == Heard.WAITING
    assert tell(index, 5, stored(B)) == Heard.KNOWN
    assert has(index) == {A: 1}


@pytest.mark.rule("KV-FLEET-3")
def test_a_gap_is_noticed_and_closed(index: PrefixIndex) -> None:
    tell(index, 0)
    assert index.missing("e") is None
    tell(index, 4)
    tell(index, 3)
    assert index.missing("e") == (1, 3)
    assert index.state("e").number == 0
    tell(index, 1)
    assert index.missing("e") == (2, 3)
    tell(index, 2)
    assert index.missing("e") is None


@pytest.mark.rule("KV-FLEET-3")
@pytest.mark.parametrize("implementation", [kvref.implementation(), kvfast.implementation()])
def test_only_so_many_wait(implementation: Any) -> None:
    index = index_of(implementation, max_waiting=2)
    assert [tell(index, n) for n in (3, 2, 1, 0)] == ["waiting", "waiting", "full", "applied"]
    assert tell(index, 1) == Heard.APPLIED
    assert index.state("e").number == 3


@pytest.mark.rule("KV-FLEET-4")
def test_copies_are_counted_by_medium_group_and_hash(index: PrefixIndex) -> None:
    tell(index, 0, stored(A), stored(A), removed(A, medium="CPU"), removed(A, group=1), removed(A))
    assert has(index) == {A: 1}
    tell(index, 1, stored(A, B, is_report=True))
    assert has(index) == {A: 1, B: 1}
    tell(index, 2, stored(C, medium="CPU"), AllBlocksCleared())
    assert not index.state("e").keys


@pytest.mark.rule("KV-FLEET-12")
def test_a_cleared_medium_takes_its_keys_alone(index: PrefixIndex) -> None:
    tell(index, 0, stored(A), stored(A, medium="CPU"), stored(B, medium="CPU", group=1))
    tell(index, 1, MediumCleared("CPU"))
    assert index.state("e").keys == {("GPU", 0, A): 1}
    tell(index, 3, MediumCleared("GPU"))
    assert index.skip("e")
    assert index.state("e") == EngineState(3, 3.0, {}, is_whole=False)


@pytest.mark.rule("KV-FLEET-4", "KV-POL-3")
@pytest.mark.parametrize("implementation", [kvref.implementation(), kvfast.implementation()])
def test_the_removal_of_the_last_copy_takes_all(implementation: Any) -> None:
    index = index_of(implementation, removed_event_per="last_copy")
    tell(index, 0, stored(A), stored(A), removed(A))
    assert has(index) == {}


@pytest.mark.rule("KV-FLEET-5")
def test_after_a_restart_nothing_old_is_left(index: PrefixIndex) -> None:
    for number in range(10):
        tell(index, number, stored(A), time_s=91.0 + number)
    tell(index, 12, stored(A), time_s=102.0)
    assert tell(index, 0, stored(A), time_s=91.0) == Heard.KNOWN
    assert tell(index, 0, stored(B), time_s=120.0) == Heard.RESTARTED
    assert has(index) == {B: 1}
    assert index.missing("e") is None


@pytest.mark.rule("KV-FLEET-6")
def test_a_state_takes_the_place_of_what_is_missing(index: PrefixIndex) -> None:
    tell(index, 0, stored(A))
    tell(index, 5, removed(B))
    assert index.restore("e", EngineState(4, 4.0, {("GPU", 0, B): 2}))
    assert has(index) == {B: 1}
    assert not index.restore("e", EngineState(3, 3.0, {("GPU", 0, C): 1}))
    assert index.state("e") == EngineState(5, 5.0, {("GPU", 0, B): 1})
    assert index.restore("f", index.state("e"))
    assert index.state("f") == index.state("e")


@pytest.mark.rule("KV-FLEET-7")
def test_after_a_loss_nothing_is_claimed_that_may_be_gone(index: PrefixIndex) -> None:
    tell(index, 0, stored(A))
    assert not index.skip("e")
    tell(index, 2, stored(B), removed(C))
    assert index.skip("e")
    assert has(index) == {B: 1}
    assert not index.state("e").is_whole
    tell(index, 3, AllBlocksCleared(), stored(C))
    assert index.state("e") == EngineState(3, 3.0, {("GPU", 0, C): 1})


@pytest.mark.rule("KV-FLEET-8")
def test_every_engine_is_told_with_its_prefix(index: PrefixIndex) -> None:
    tell(index, 0, stored(A, C))
    index.hear("f", Batch(0, 0.0, (stored(A, B),)))
    index.hear("g", Batch(0, 0.0, (stored(B, C),)))
    assert index.prefixes((A, B, C)) == {"e": 1, "f": 2}
    assert index.prefixes((A, B, C), group=1) == {}
    assert index.prefixes((A, B, C), medium="CPU") == {}
    assert index.prefixes(()) == {}
    assert index.engines == ("e", "f", "g")
    index.forget("f")
    assert index.prefixes((A, B, C)) == {"e": 1}


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


@pytest.mark.rule("KV-FLEET-9")
@pytest.mark.parametrize("implementation", [kvref.implementation(), kvfast.implementation()])
@pytest.mark.parametrize("given", [{"max_waiting": 0}, {"removed_event_per": "block"}])
def test_an_index_of_nonsense_is_refused(implementation: Any, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(given))):
        implementation.make_prefix_index(**given)


@pytest.mark.rule("KV-FLEET-17")
def test_a_hit_is_one_in_all_groups(index: PrefixIndex) -> None:
    tell(index, 0, stored(A, B, C), stored(B, C, group=1))
    prompt = (A, B, C, b"dddd")
    full, window = GroupPrefix(0, prompt, 4), GroupPrefix(1, prompt, 4, 2)
    state = GroupPrefix(1, (B, C), 8, 1)
    assert index.hits([full]) == {"e": 12}
    assert index.hits([full, window]) == {"e": 12}
    assert index.hits([full, state]) == {"e": 8}
    tell(index, 1, removed(C, group=1))
    assert index.hits([full, window]) == {}
    assert index.hits([full, GroupPrefix(1, prompt, 4, 1)]) == {"e": 8}
    assert index.hits([window], medium="CPU") == {}


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
