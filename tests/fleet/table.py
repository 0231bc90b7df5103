"""The table of docs/fleet.md: which rule lives blame for each mistake in kvfast's index.

python -m tests.fleet.table
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.discovery import find_index
from kvcheck.fleet.suite import game_of
from kvcheck.mistakes import Mistake
from kvcheck.play.lives import LivesReport, judged
from tests.device.mistakes import planted
from tests.source import ROOT, write_behind

MISTAKES = planted(ROOT / "tests/fleet/planted/index.diff")
LIVES = 100
MARK = "| mistake | of | named first | shortest, in calls |\n|---|---|---|---:|\n"


def report_of(mistake: Mistake) -> LivesReport:
    """Judge the index with the mistake."""
    with mistake.make():
        return judged(game_of(find_index("kvfast")), num_lives=LIVES)


def named(report: LivesReport) -> list[str]:
    """Return the rules in the order of the report, and those that the first finding doubts."""
    first = next(iter(report.findings.values()))
    return list(dict.fromkeys((*report.findings, *first.others)))


def rows() -> Iterator[str]:
    for mistake in MISTAKES:
        report = report_of(mistake)
        first = next(iter(report.findings.values()))
        rules = ", ".join(named(report)[:3])
        about = f"{mistake.about[0].upper()}{mistake.about[1:].rstrip('.')}"
        yield f"| {about} | {', '.join(mistake.rules)} | {rules} | {len(first.lines) - 1} |"


if __name__ == "__main__":
    write_behind(ROOT / "docs/fleet.md", MARK, rows())
