"""Names and shares of a draw; explained lines are in the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutation.draw import Mutant
from tests.mutation.page import Explained, draws, explained, interval
from tests.mutation.parts import PARTS
from tests.source import ROOT


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("kvref.hashing.x__as_int__mutmut_1", "kvref.hashing:_as_int"),
        ("kvref.hashing.x_split_key__mutmut_4", "kvref.hashing:split_key"),
        ("kvref.groups.base.xǁGroupǁ__init____mutmut_13", "kvref.groups.base:Group.__init__"),
        ("kvref.tier.xǁReferenceTierǁ_needed__mutmut_22", "kvref.tier:ReferenceTier._needed"),
    ],
)
def test_a_mutant_is_named_by_its_function(name: str, place: str) -> None:
    assert Mutant(name, "killed").place == place


def test_a_reason_is_for_one_change_whatever_its_number() -> None:
    why = Explained("kvref", "kvref.hashing:_as_int", "a = 1", "a = 2", "Nobody reads it.")
    assert why.fits(Mutant("kvref.hashing.x__as_int__mutmut_7", "survived", "a = 1", "a = 2"))
    other = Mutant("kvref.hashing.x__as_int__mutmut_7", "survived", "a = 1", "a = 3")
    assert not why.fits(other)
    assert replace(why, was=(("a = 1", "a = 3"),)).fits(other)
    assert not why.fits(Mutant("kvref.hashing.x_as_int__mutmut_7", "survived", "a = 1", "a = 2"))


def test_the_interval_is_wilsons() -> None:
    low, high = interval(90, 100)
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)
    assert interval(100, 100)[0] > 0.96


def test_what_is_explained_stands_in_the_code() -> None:
    """Explain no line that was removed, as it has no mutant."""
    for why in explained():
        module = ROOT / f"{why.place.partition(':')[0].replace('.', '/')}.py"
        lines = {line.strip() for line in module.read_text(encoding="utf-8").splitlines()}
        assert set(why.old.splitlines()) <= lines, why
        assert why.part in PARTS
        assert why.why.endswith(".")


def test_a_draw_takes_the_place_of_the_same_one_alone() -> None:
    kept = [draw.which for draw in draws()]
    assert len(set(kept)) == len(kept)
    one = draws()[0]
    assert replace(one, commit="another", number=50).which == one.which
    assert replace(one, seed=99).which not in kept


def test_every_part_has_a_draw_of_some_size() -> None:
    assert {draw.part for draw in draws() if draw.label == "raw"} <= set(PARTS)
    for draw in draws():
        assert 50 <= draw.number <= draw.total
