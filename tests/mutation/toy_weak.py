"""Runs every line of the toy and looks at almost nothing."""

from __future__ import annotations

import contextlib

from tests.mutation.toy import Counted


def test_it_can_be_called() -> None:
    assert Counted([9]).how_many
    with contextlib.suppress(ValueError):
        _ = Counted([-1], bound=-9).how_many
