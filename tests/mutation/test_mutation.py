"""Names and shares of a draw; explained lines are in the code."""

from __future__ import annotations

from tests.mutation.draw import PARTS
from tests.mutation.page import draws, explained
from tests.source import ROOT


def test_what_is_explained_stands_in_the_code() -> None:
    """Explain no line that was removed, as it has no mutant."""
    for why in explained():
        module = ROOT / f"{why.place.partition(':')[0].replace('.', '/')}.py"
        lines = {line.strip() for line in module.read_text(encoding="utf-8").splitlines()}
        assert set(why.old.splitlines()) <= lines, why
        assert why.part in PARTS
        assert why.why.endswith(".")


def test_every_part_has_a_draw_of_some_size() -> None:
    assert {draw.part for draw in draws() if draw.label == "raw"} <= set(PARTS)
    for draw in draws():
        assert 50 <= draw.number <= draw.total
