"""Notices every change of the toy that can be noticed."""

from __future__ import annotations

import pytest

from tests.mutation.toy import Counted


def test_those_above_the_bound_count() -> None:
    assert Counted([3, 4, 5]).how_many == 2
    assert Counted([3, 4, 5], bound=4).large == [5]


def test_none_is_none() -> None:
    assert Counted([]).how_many == 0


def test_zero_is_a_size_and_less_is_none() -> None:
    assert Counted([0], bound=-9).how_many == 1
    with pytest.raises(ValueError, match="no sizes"):
        _ = Counted([-1], bound=-9).how_many
