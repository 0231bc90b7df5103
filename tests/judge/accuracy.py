"""How often the judge blames the right rule, measured on mistakes that it may know.

    python -m tests.judge.accuracy --sample 60 --seed 1

Each mistake of the registry is checked with the directed suite at level identity; its rules are
those that its author names. Three rankings: by the checks alone, with the fault dictionary but the
mistake itself left out of it, and with all of it. Writes docs/BLAME.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from random import Random

from kvcheck.discovery import find_implementation
from kvcheck.judge.faults import by_likeness, known_of, likenesses
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import find
from kvcheck.play.verdicts import Level
from tests.source import ROOT

PAGE = ROOT / "docs/BLAME.md"
WAYS = ("checks alone", "dictionary without it", "whole dictionary")
OPTIONS = Options(Level.IDENTITY, Budget(0.0, 0, 6.0), name="mistake", oracle="kvref")
NOWHERE = 999


@dataclass(frozen=True)
class Row:
    """One mistake: the place of its first rule that was blamed, from 0, in each way."""

    mistake: str
    rules: tuple[str, ...]
    places: tuple[int, ...]
    blamed: tuple[str, ...]
    seconds: float


def measured(name: str) -> Row:
    """Check one mistake."""
    begin, mistake, oracle = time.process_time(), find(name), find_implementation("kvref")
    suite = Suite(mistake.make(), oracle, OPTIONS)
    suite.run()
    raw = suite.found.listed
    ranked = suite.found.ranked
    found = likenesses(raw, ranked, known_of(OPTIONS.oracle), oracle, OPTIONS)
    others = [each for each in found if each.mistake.id != name]
    orders = [
        [each.rule for each in order]
        for order in (ranked, by_likeness(ranked, others), by_likeness(ranked, found))
    ]
    places = tuple(
        next((n for n, rule in enumerate(order) if rule in mistake.rules), NOWHERE)
        for order in orders
    )
    return Row(name, mistake.rules, places, tuple(orders[-1][:3]), time.process_time() - begin)


def share(rows: Sequence[Row], way: int, places: int) -> str:
    """How many of the rows have a right rule among the first so many."""
    number = sum(row.places[way] < places for row in rows)
    return f"{number} of {len(rows)} ({100 * number / max(len(rows), 1):.0f} %)"


def page(rows: Sequence[Row], seed: int, total: int) -> str:
    """The page."""
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    lines = [
        "# Which rule is blamed",
        "",
        f"Written by `python -m tests.judge.accuracy --sample {len(rows)} --seed {seed}` on"
        f" {date.today()}, at commit {commit}: {len(rows)} of the {total} mistakes of the registry"
        " that are made as an implementation, each checked by the directed suite at level identity"
        " without vectors and random programs. A rule is right if the mistake's author names it.",
        "",
        "| ranking | right rule first | among the first three |",
        "|---|---|---|",
        *(f"| {way} | {share(rows, n, 1)} | {share(rows, n, 3)} |" for n, way in enumerate(WAYS)),
        "",
        "*Without it*: the dictionary as an unknown mistake meets it, whose own entry is left out.",
        f"Seconds of the processor for each: {sum(r.seconds for r in rows) / len(rows):.0f}.",
        "",
        "## Blamed otherwise, with the whole dictionary",
        "",
        "| mistake | breaks | blamed first |",
        "|---|---|---|",
        *(
            f"| `{row.mistake}` | {', '.join(row.rules)} | {', '.join(row.blamed)} |"
            for row in rows
            if row.places[-1] > 0
        ),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    mistakes = known_of(OPTIONS.oracle)
    chosen = Random(options.seed).sample(mistakes, min(options.sample, len(mistakes)))
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(measured, [mistake.id for mistake in chosen]):
            rows.append(row)
            print(f"{row.mistake} {row.rules} {row.places} {row.seconds:.0f} s", flush=True)
    PAGE.write_text(page(rows, options.seed, len(mistakes)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
