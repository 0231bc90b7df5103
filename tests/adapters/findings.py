"""Figures of docs/FINDINGS.md, from a report of `kvspec check`.

    kvspec check IMPL --level identity --budget ci --seed 1 --json out.json
    python -m tests.adapters.findings out.json

They are written to the place that is marked there for the report's subject. Why each rule is broken
is written by hand, in the table behind the heading BY_HAND; exit code 1: it names others than the
report.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "FINDINGS.md"
BY_HAND = "### Why they are broken"
RULE = re.compile(r"KV-[A-Z]+-[0-9]+")
VERDICTS = ("unbroken", "broken", "in doubt", "not exercised", "cannot be checked")


def figures(report: Mapping[str, Any]) -> str:
    """The report as a table in Markdown, and the rules that it calls broken."""
    static, verdicts = report["static"], Counter(report["rules"].values())
    rows = [("level, seed", f"{report['level']}, {report['seed']}")]
    rows += [(f"rules {verdict}", f"{verdicts[verdict]:,}") for verdict in VERDICTS]
    rows += [
        ("static vectors", f"{static['walks']:,} walks, {static['operations']:,} operations"),
        ("directed programs", f"{report['directed']:,}, and {len(report['left_out']):,} left out"),
        ("random programs", f"{report['random']:,}"),
    ]
    lines = [f"| `kvspec check`, {report['subject']} | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    groups: dict[str, list[str]] = {}
    for rule in _with_verdict(report, "not exercised"):
        groups.setdefault(rule.rpartition("-")[0], []).append(rule)
    unseen = ", ".join(f"{name} {len(rules)}" for name, rules in groups.items())
    broken = ", ".join(_with_verdict(report, "broken"))
    return "\n".join([*lines, "", f"Broken: {broken}.", "", f"Not exercised: {unseen}."])


def _with_verdict(report: Mapping[str, Any], verdict: str) -> Iterator[str]:
    return (rule for rule, found in report["rules"].items() if found == verdict)


def filled(page: str, name: str, text: str) -> str:
    """The page with the text in its place; ValueError where none is marked."""
    begin, end = (f"<!-- {word} {name} -->\n" for word in ("begin", "end"))
    before, marked, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not marked or not closed:
        raise ValueError(f"the page lacks the lines {begin.strip()} and {end.strip()}")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def differences(page: str) -> list[str]:
    """Rules that are broken and explained nowhere, or explained and not broken; one line each."""
    told, _, rest = page.partition(BY_HAND)
    broken = set(RULE.findall(told.rpartition("\nBroken: ")[2].partition("\n")[0]))
    table = "\n".join(line for line in rest.partition("\n#")[0].splitlines() if line[:1] == "|")
    by_hand = set(RULE.findall(table))
    return [f"{rule} is broken, and nothing says why" for rule in sorted(broken - by_hand)] + [
        f"{rule} is explained, and not broken" for rule in sorted(by_hand - broken)
    ]


def main(path: Path) -> int:
    """Write the figures; 1 if the explanations do not fit them."""
    report = json.loads(path.read_text(encoding="utf-8"))
    page = filled(PAGE.read_text(encoding="utf-8"), report["subject"], figures(report))
    PAGE.write_text(page, encoding="utf-8")
    found = differences(page)
    for line in found:
        print(line, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
