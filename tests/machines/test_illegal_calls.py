"""Each illegal call alone, on managers that do something instead of refusing it."""

from __future__ import annotations

import pytest

from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.performing import perform
from kvcheck.play.runner import Runner
from kvcheck.play.steps import Admit, Arrive, Break, Program
from kvspec.errors import InvariantViolation
from tests.mistakes import mistaken
from tests.programs import SCENARIOS, configure, full


@pytest.mark.parametrize(
    ("mistake", "name", "found"),
    [
        ("EvictsUpToTheWrongId", "evict outside the pool", "errors_change_nothing"),
        ("SkipsFromZero", "skip below zero", "illegal_calls_raise"),
        ("FailsItsAudit", "skip below zero", "audited"),
    ],
)
def test_an_illegal_call_that_does_something_is_seen(mistake: str, name: str, found: str) -> None:
    call = [illegal.name for illegal in ILLEGAL_OPERATIONS].index(name)
    steps = (Arrive((1, 2, 3, 4, 5)), Admit(), Break(call=call))
    with pytest.raises(InvariantViolation) as caught:
        perform(Runner(Program(configure(8, full()), steps), mistaken(mistake)), steps)
    assert caught.value.invariant == found


def test_each_illegal_call_has_a_story_of_its_own() -> None:
    names = [illegal.name for illegal in ILLEGAL_OPERATIONS]
    assert len(set(names)) == len(names)
    calls = {
        step.call for program in SCENARIOS for step in program.steps if isinstance(step, Break)
    }
    assert calls == set(range(len(names)))
