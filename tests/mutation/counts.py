"""The counts behind docs/MUTATION.md, kept in counts.json: runs take hours, and the code goes on.

Of each file: how many mutants it had when the page was last written, and what became of those that
were tried. Of each fresh draw: what became of it, once and for all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tests.mutation.explained import Explained
from tests.mutation.runner import Outcome, Result

FILE = Path(__file__).with_name("counts.json")


@dataclass(frozen=True)
class Row:
    """Counts of one file, or of several. `there`: its mutants, tried or not."""

    there: int
    killed: int = 0
    timeouts: int = 0
    equivalent: int = 0
    survived: int = 0

    @property
    def tried(self) -> int:
        """Those of which anything is known."""
        return self.killed + self.timeouts + self.equivalent + self.survived

    @property
    def score(self) -> float:
        """Of those tried that differ, the share that dies; 1.0 if there are none."""
        differ = self.tried - self.equivalent
        return (self.killed + self.timeouts) / differ if differ else 1.0

    def __str__(self) -> str:
        counts = (self.there, self.tried, self.killed, self.timeouts, self.equivalent)
        cells = " | ".join(f"{count:,}" for count in (*counts, self.survived))
        return f"{cells} | {100 * self.score:.1f} %" if self.tried else f"{cells} | –"


def row(there: int, results: Iterable[Result], lists: Explained) -> Row:
    """The counts of results. A change that compiles to the same code is equivalent."""
    counts: Counter[str] = Counter()
    for result in results:
        if result.outcome is Outcome.SAME or (
            result.outcome is Outcome.SURVIVED and lists.is_equivalent(result.name)
        ):
            counts["equivalent"] += 1
        else:
            counts[result.outcome] += 1
    return Row(
        there,
        counts[Outcome.KILLED],
        counts[Outcome.TIMEOUT],
        counts["equivalent"],
        counts[Outcome.SURVIVED],
    )


def total(rows: Iterable[Row]) -> Row:
    """All together."""
    known = list(rows)
    return Row(*(sum(getattr(each, part.name) for each in known) for part in fields(Row)))


@dataclass(frozen=True)
class Draw:
    """A draw of `number` among `there` mutants, and what became of them, nothing explained away."""

    target: str
    seed: int
    there: int
    number: int
    killed: int
    timeouts: int
    same: int
    survived: tuple[str, ...]

    @classmethod
    def of(cls, target: str, seed: int, there: int, results: Sequence[Result]) -> Draw:
        """From the results."""
        counts = Counter(result.outcome for result in results)
        alive = sorted(r.name for r in results if r.outcome is Outcome.SURVIVED)
        dead, late, same = (
            counts[each] for each in (Outcome.KILLED, Outcome.TIMEOUT, Outcome.SAME)
        )
        return cls(target, seed, there, len(results), dead, late, same, tuple(alive))


@dataclass(frozen=True)
class Counts:
    """What counts.json holds: files by target, draws, and the day of the last whole run."""

    made: str
    files: Mapping[str, Mapping[str, Row]]
    draws: tuple[Draw, ...] = ()


def read(path: Path = FILE) -> Counts:
    """What `write` wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    files = {
        target: {name: Row(*numbers) for name, numbers in rows.items()}
        for target, rows in found["files"].items()
    }
    draws = (Draw(**{**each, "survived": tuple(each["survived"])}) for each in found["draws"])
    return Counts(found["made"], files, tuple(draws))


def write(counts: Counts, path: Path = FILE) -> None:
    """One line for each file."""
    lines = []
    for target, rows in counts.files.items():
        body = ",\n".join(
            f"   {json.dumps(name)}: {json.dumps(list(asdict(each).values()))}"
            for name, each in rows.items()
        )
        lines.append(f"  {json.dumps(target)}: {{\n{body}\n  }}")
    draws = json.dumps([asdict(each) for each in counts.draws], indent=1, ensure_ascii=False)
    files = ",\n".join(lines)
    text = f'{{\n "made": {json.dumps(counts.made)},\n "files": {{\n{files}\n }},'
    text += f'\n "draws": {draws}\n}}'
    path.write_text(text + "\n", encoding="utf-8")
