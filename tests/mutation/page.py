"""docs/MUTATION.md, from the draws in draws.json and the reasons in explained.toml."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path

from tests.mutation.draw import PARTS, Mutant
from tests.source import ROOT

DRAWS = Path(__file__).parent / "draws.json"
EXPLAINED = Path(__file__).parent / "explained.toml"
PAGE = "docs/MUTATION.md"
HEAD = (Path(__file__).parent / "head.txt").read_text(encoding="utf-8")
"""Text of the page before its tables, written by hand."""


@dataclass(frozen=True)
class Draw:
    """`number` mutants of the `total` of a part, and which of them were not simply killed."""

    part: str
    label: str
    seed: int
    commit: str
    total: int
    number: int
    others: tuple[Mutant, ...]

    @property
    def survivors(self) -> list[Mutant]:
        return [each for each in self.others if each.status in ("survived", "no tests")]


@dataclass(frozen=True)
class Explained:
    """A mutant by its function and the lines that it changes, and why it has no visible effect.

    `was`: the same change in lines as they were when it was drawn.
    """

    part: str
    place: str
    old: str
    new: str
    why: str
    was: tuple[tuple[str, str], ...] = ()
    was_at: tuple[str, ...] = ()

    def fits(self, mutant: Mutant) -> bool:
        """Check that this is the mutant; its number changes with the code around it."""
        changes = ((self.old, self.new), *self.was)
        is_there = mutant.place == self.place or mutant.place in self.was_at
        return is_there and (mutant.old, mutant.new) in changes


def draws() -> list[Draw]:
    return [
        Draw(**{**each, "others": tuple(Mutant(**one) for one in each["others"])})
        for each in json.loads(DRAWS.read_text(encoding="utf-8"))
    ]


def explained() -> list[Explained]:
    table = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    return [
        Explained(
            **{
                **each,
                "was": tuple((old, new) for old, new in each.get("was", ())),
                "was_at": tuple(each.get("was_at", ())),
            }
        )
        for each in table.get("mutant", ())
    ]


def add(draw: Draw, commit: str) -> None:
    order = list(PARTS)
    rows = sorted(
        (*draws(), replace(draw, commit=commit)),
        key=lambda each: (order.index(each.part), each.seed, each.label != "raw"),
    )
    text = json.dumps([asdict(each) for each in rows], ensure_ascii=False, indent=1)
    DRAWS.write_text(text + "\n", encoding="utf-8")
    (ROOT / PAGE).write_text(texts()[PAGE], encoding="utf-8")


def interval(dead: int, number: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share."""
    z = 1.96
    share, scale = dead / number, 1 + z * z / number
    middle = share + z * z / (2 * number)
    half = z * sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return (middle - half) / scale, (middle + half) / scale


def texts() -> Mapping[str, str]:
    return {PAGE: "\n".join(_lines()) + "\n"}


def _lines() -> Iterator[str]:
    reasons = explained()
    yield HEAD
    yield "| part | draw | commit, seed | mutants | drawn | dead | score | interval | explained |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for draw in draws():
        known = sum(any(why.fits(one) for why in reasons) for one in draw.survivors)
        dead = draw.number - len(draw.survivors)
        low, high = interval(dead, draw.number)
        # Tests that were widened for a draw say nothing of the mutants outside of it.
        likely = f"{low:.1%} … {high:.1%}" if draw.label == "raw" else ""
        yield (
            f"| {PARTS[draw.part]['about']} | {draw.label} | {draw.commit}, {draw.seed} |"
            f" {draw.total:,} | {draw.number} | {dead} | {dead / draw.number:.1%} |"
            f" {likely} | {known}, with them {(dead + known) / draw.number:.1%} |"
        )
    others = Counter(
        each.status for draw in draws() for each in draw.others if each not in draw.survivors
    )
    yield ""
    yield (
        "Dead otherwise than by a test that failed: "
        + (", ".join(f"{count} {status}" for status, count in sorted(others.items())) or "none")
        + "."
    )
    yield from _list("Explained", [(w.place, w.old, w.new, w.why) for w in reasons])
    latest = {draw.part: draw for draw in draws()}  # a mended one follows its raw one
    left = {
        (one.place, one.old, one.new, "")
        for draw in latest.values()
        for one in draw.survivors
        if not any(why.fits(one) for why in reasons)
    }
    yield from _list("Survivors without a reason", sorted(left))


def _list(title: str, rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    if not rows:
        yield "None."
    for place, old, new, why in rows:
        change = f"`{_inline(old)}` → `{_inline(new)}`"
        yield f"- `{place}`: {change}" + (f". {why}" if why else "")


def _inline(code: str) -> str:
    return " ".join(code.split()) or " "
