"""Checks after every operation and step: content, results, events, transitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.play import checks
from kvcheck.play.checks import CompareCheck, EventCheck, InvariantCheck, ShadowCheck, identities
from kvcheck.play.difference import WrongAnswer
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Performed, Tracked
from kvcheck.play.scheduler import Seat
from kvcheck.play.state import View
from kvcheck.play.steps import Admit, Arrive
from kvspec.errors import InvariantViolation
from kvspec.events import AllBlocksCleared
from kvspec.interface import Feature
from tests.judge.test_verdicts import ran
from tests.programs import CFG, A
from tests.stand_ins import Lacks

REFERENCE = kvref.implementation()
ITEM = Arrive((1, 2, 3, 4), items=(("i", 1, 2), ("j", 2, 1)))
EMBEDDED = Arrive((1, 2, 3, 4), embedded=(9, 9))


def told_apart(arrival: Arrive, start: int = 0) -> list[int]:
    tokens = arrival.prompt[start:]
    return list(identities(Tracked("r0", arrival, Seat.of(arrival.prompt)), start, tokens))


def test_items_and_embeddings_tell_tokens_apart() -> None:
    assert told_apart(Arrive((1, 2, 3))) == [1, 2, 3]
    plain, first, second, last = told_apart(ITEM)
    assert (plain, last) == (1, 4)
    assert len({first, second, 2, 3}) == 4
    assert told_apart(ITEM, 2) == [second, 4]
    for items in ((("k", 1, 2), ("j", 2, 1)), (("i", 0, 3), ("j", 2, 1)), (("i", 1, 2),)):
        assert told_apart(replace(ITEM, items=items))[2] != second
    zero, one, *rest = told_apart(EMBEDDED)
    assert (zero != 1, one != 2, rest) == (True, True, [3, 4])
    assert told_apart(EMBEDDED, 1) == [one, 3, 4]
    assert told_apart(replace(EMBEDDED, embedded=(9, 8)))[:2] != [zero, one]
    assert told_apart(replace(EMBEDDED, embedded=(8, 9)))[1] == one


def done(name: str, result: Any = None, **more: Any) -> Performed:
    view = View(5, 0.5, REFERENCE.create(CFG).snapshot())
    kept = {"before": view, "after": view, "oracle": Outcome(result), "oracle_after": view, **more}
    return Performed(name, None, {}, Outcome(result), **kept)


@pytest.mark.parametrize("exact_ids", [True, False])
def test_an_answer_and_how_much_is_free_are_compared_with_the_oracle(exact_ids: bool) -> None:
    check, runner = CompareCheck(exact_ids=exact_ids), ran()
    view = done("free").after
    blocks = replace(view.snapshot, free_queue=())
    cases = {
        "pop_blocks_for_free answers": done("pop_blocks_for_free", [1], oracle=Outcome([1, 2])),
        "free blocks after free": done("free", oracle_after=replace(view, num_free_blocks=4)),
    }
    if exact_ids:
        cases["free_queue after free"] = done("free", after=replace(view, snapshot=blocks))
        cases["pop_blocks_for_free answers "] = done(
            "pop_blocks_for_free", [1], oracle=Outcome([2])
        )
    check.after_operation(runner, done("free"))
    for what, one in cases.items():
        with pytest.raises(WrongAnswer) as caught:
            check.after_operation(runner, one)
        assert caught.value.expected.startswith(what.strip())
        check.after_operation(runner, replace(one, oracle=None))
        check.after_operation(runner, replace(one, oracle_after=None))


def test_events_are_taken_of_both_sides_after_each_step() -> None:
    runner = ran(Arrive(A), Admit(), oracle=REFERENCE)
    assert runner.oracle is not None
    check = EventCheck()
    check.after_step(runner)
    assert check.fold is not None
    assert len(check.fold.keys) == 2
    for side in (runner.subject, runner.oracle):
        assert side.player.manager.take_events() == ()
    runner.oracle.player.manager.reset_prefix_cache = lambda: True  # type: ignore[method-assign]
    told = AllBlocksCleared()
    runner.subject.player.manager.take_events = lambda: (told,)  # type: ignore[method-assign]
    check.fold.keys.clear()
    runner.look_again()
    with pytest.raises(WrongAnswer, match="KV-EVT-1"):
        check.after_step(runner)
    silent = ran()
    silent.config = replace(CFG, enable_events=False)
    EventCheck().after_step(silent)
    silent.subject.player.manager.take_events = lambda: (told,)  # type: ignore[method-assign]
    with pytest.raises(InvariantViolation) as caught:
        EventCheck().after_step(silent)
    assert (caught.value.invariant, caught.value.rule) == ("no_event_when_off", "KV-EVT-1")
    silent.subject.features -= {Feature.EVENTS}
    EventCheck().after_step(silent)


@pytest.mark.parametrize(
    ("name", "outcome", "told"),
    [
        ("allocate_slots", Outcome(None), "refused"),
        ("allocate_slots", Outcome([[]]), "done"),
        ("reset_prefix_cache", Outcome(False), "refused"),
        ("reset_prefix_cache", Outcome(True), "done"),
        ("free", Outcome(None), "done"),
        ("free", Outcome(error=ValueError()), "error"),
        ("get_block_ids", Outcome({}), "done"),
    ],
)
def test_a_transition_is_told_with_its_ending(
    name: str, outcome: Outcome, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(checks, "check_transition", lambda *a, **k: seen.append((a, k)))
    for subject, left_out in (
        (REFERENCE, frozenset()),
        (Lacks(Feature.STABLE_LISTS), checks.UNSTABLE_LISTS),
    ):
        runner = ran(subject=subject)
        for inside in (False, True):
            runner.ends_inside = inside
            one = replace(done(name), outcome=outcome)
            InvariantCheck().after_operation(runner, one)
            (config, transition), more = seen.pop()
            assert config == runner.config
            assert (transition.call, transition.outcome) == (
                {"get_block_ids": "get_blocks"}.get(name, name), told,
            )  # fmt: skip
            assert transition.before is one.before.snapshot
            assert transition.after is one.after.snapshot
            assert more == {"left_out": left_out | (checks.MOVED_KEYS if inside else frozenset())}


def test_a_load_that_is_awaited_is_written_when_it_arrives() -> None:
    runner = ran(Arrive(A), Admit(external_tokens=4, load_later=True))
    (request,) = runner.requests
    asked = next(given for name, _, given in runner.operations if name == "allocate_slots")

    def waiting() -> ShadowCheck:
        check = ShadowCheck(runner)
        waits = replace(request, seat=Seat.of(A))
        check._write_granted(runner, waits, asked)
        assert check.awaited == {"r0": asked}
        assert check.check.shadow.take_written() == {1, 2}
        assert check.check.shadow.size_bytes == 0
        return check

    for name in ("cache_blocks", "evict_blocks"):
        check = waiting()
        one = replace(done(name), request=request, lost=(2,) if name == "evict_blocks" else ())
        check._after_operation(runner, one)
        assert check.awaited == {}
        there = [block for block in (1, 2) if check.check.shadow._held.get(block)]
        assert there == ([1] if name == "evict_blocks" else [1, 2])
    for name in ("free", "pop_blocks_for_free"):
        check = waiting()
        check._after_operation(runner, replace(done(name), request=request))
        assert check.awaited == {}
        assert check.check.shadow.size_bytes == 0
    check = waiting()
    check._after_operation(runner, replace(done("evict_blocks"), lost=(7,)))
    assert check.awaited == {"r0": asked}
