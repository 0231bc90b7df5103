"""docs/MUTATION.md, from the draws in draws.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

from tests.mutation.draw import Mutant
from tests.mutation.parts import PARTS
from tests.source import ROOT

DRAWS = Path(__file__).parent / "draws.json"
PAGE = "docs/MUTATION.md"


@dataclass(frozen=True)
class Draw:
    """`number` mutants of the `total` of a part, and which of them were not simply killed."""

    part: str
    label: str
    seed: int
    commit: str
    total: int
    number: int
    alive: tuple[Mutant, ...]


def draws() -> list[Draw]:
    """All that are kept."""
    if not DRAWS.exists():
        return []
    return [
        Draw(**{**each, "alive": tuple(Mutant(**one) for one in each["alive"])})
        for each in json.loads(DRAWS.read_text(encoding="utf-8"))
    ]


def add(draw: Draw) -> None:
    """Keep one more; one of the same part and label goes."""
    kept = [each for each in draws() if (each.part, each.label) != (draw.part, draw.label)]
    rows = [asdict(each) for each in (*kept, draw)]
    DRAWS.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write() -> None:
    """The page."""
    for path, text in texts().items():
        (ROOT / path).write_text(text, encoding="utf-8")


def texts() -> Mapping[str, str]:
    """The page by its path."""
    return {PAGE: "\n".join(_lines()) + "\n"}


def _lines() -> Iterator[str]:
    yield "# Mutation"
