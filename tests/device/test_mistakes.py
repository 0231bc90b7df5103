"""Each mistake of the device plane is seen by its check, which without it sees nothing."""

from __future__ import annotations

import pytest

from tests.device import mistakes, mistakes_contents, mistakes_steps
from tests.device.mistakes import SEEN, Check, Mistake
from tests.device.models import DEVICE

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="these tests are of the tests"),
    pytest.mark.usefixtures("one_thread"),
]

MISTAKES: tuple[Mistake, ...] = (
    *mistakes.MISTAKES,
    *mistakes_steps.MISTAKES,
    *mistakes_contents.MISTAKES,
)
CHECKS = tuple(dict.fromkeys(one.check for one in mistakes.MISTAKES))
"""Those of the other files run as tests anyway."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_is_seen(mistake: Mistake) -> None:
    with mistake.make(), pytest.raises(SEEN):
        mistake.check()


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: str(one.__name__))
def test_without_a_mistake_a_check_sees_nothing(check: Check) -> None:
    check()


def test_each_mistake_says_what_is_wrong() -> None:
    assert len({one.id for one in MISTAKES}) == len(MISTAKES)
    assert all(one.about and one.rules for one in MISTAKES)
