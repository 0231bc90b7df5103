"""The table of docs/trees.md: which rule lives blame for each mistake in kvref's tree.

python -m tests.tree.table
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.discovery import find_tree
from kvcheck.mistakes import Mistake
from kvcheck.play.lives import LivesReport, judged
from kvcheck.tree.suite import game_of
from tests.mistakes import mistakes
from tests.source import ROOT, write_behind

PLANTED = [each for each in mistakes() if each.kind == "tree"]
LIVES = 150
MARK = "| mistake | of | named first | shortest, in calls |\n|---|---|---|---:|\n"


def report_of(mistake: Mistake) -> LivesReport:
    return judged(game_of(find_tree(f"mistake:{mistake.id}")), num_lives=LIVES)


def named(report: LivesReport) -> list[str]:
    """Return the rules in the order of the report, behind the first those that it doubts."""
    first, *rest = report.findings.values()
    return list(dict.fromkeys((first.rule, *first.others, *(each.rule for each in rest))))


def rows() -> Iterator[str]:
    for mistake in PLANTED:
        report = report_of(mistake)
        about = f"{mistake.about[0].upper()}{mistake.about[1:].rstrip('.')}"
        if not report.findings:
            yield f"| {about} | {', '.join(mistake.rules)} | by its example alone | |"
            continue
        first = next(iter(report.findings.values()))
        rules = ", ".join(named(report)[:3])
        yield f"| {about} | {', '.join(mistake.rules)} | {rules} | {len(first.lines)} |"


if __name__ == "__main__":
    write_behind(ROOT / "docs/trees.md", MARK, rows())
