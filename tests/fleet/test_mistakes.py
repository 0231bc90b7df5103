"""Broken indexes are found, each by the smallest number of runs beside the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcheck.mistakes import Mistake
from tests.device.mistakes import planted
from tests.fleet.machine import DisagreementError
from tests.fleet.test_lockstep import played

MISTAKES = planted(Path(__file__).parent / "planted/index.diff")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_in_an_index_is_found(mistake: Mistake) -> None:
    with mistake.make(), pytest.raises((DisagreementError, KeyError)):
        played(60)
