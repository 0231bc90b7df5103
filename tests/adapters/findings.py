"""The tables of docs/FINDINGS.md, from reports of `kvspec check` and files of known differences.

    kvspec check IMPL --level LEVEL --budget directed --json out.json \\
        --expect docs/findings/NAME.toml
    python -m tests.adapters.findings NAME out.json

The report is kept as docs/findings/NAME.json, without what can be had again. Tables are written
between the marks of the page from these files alone;
`python -m tests.regenerate findings` writes them again. A finding's reason is in the file of
known differences: its words before the first colon are the kind by which the table is sorted.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvcheck.judge.outcome import Verdict
from kvcheck.play.text import operation_text
from tests.adapters import lives, rows
from tests.source import ROOT

PAGE = "docs/FINDINGS.md"
FOLDER = ROOT / "docs" / "findings"
SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        "vllm": "vLLM",
        "vllm-0.33": "vLLM",
        "nano-vllm": "nano-vllm bb823b3",
    }
)
"""The names of the files, and of the columns; a checkout does not know its version."""

UNKNOWN = "unknown"
POLICY = re.compile(r"; policy=Policy\(.*?(?:characters\)|\))(?=;|$)")
"""Stands in each configuration of a subject; the profile that was asked for says it."""

KINDS = (
    *("Wrong", "Arguments", "Order", "Form of the error", "Changed", "Not offered"),
    "No reason given",
)
"""What a reason begins with, the gravest first. Changed: what a later version does on purpose, and
no rule has yet."""

KEPT = (
    *("subject", "implementation", "version", "level", "seed", "conforms"),
    *("rules", "counts", "directed", "random"),
)
OF_VIOLATION = ("rule", "cause", "program", "configuration", "expected", "observed", "like")
MOST = 240
"""Characters of what was expected or observed."""

Report = Mapping[str, Any]


def kept(report: Report) -> dict[str, Any]:
    """Return the part of a report that is committed: all that the tables show."""
    return {
        **{name: report[name] for name in KEPT},
        "version": report["version"].partition("+")[0],
        "left_out": len(report["left_out"]),
        "violations": [
            {
                **{name: found[name] for name in OF_VIOLATION if found.get(name)},
                "story": [
                    operation_text(each["op"], each["req"], each["args"])
                    for each in found["operations"]
                ],
            }
            for found in report["violations"]
        ],
    }


def read(name: str) -> tuple[Report, Mapping[str, str]]:
    report = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    known = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return report, {each["cause"]: each["reason"] for each in known.get("known", ())}


def texts() -> Mapping[str, str]:
    reports = {name: read(name) for name in SUBJECTS}
    page = filled((ROOT / PAGE).read_text(encoding="utf-8"), "matrix", matrix(reports))
    for name, (report, reasons) in reports.items():
        page = filled(page, name, "\n\n".join(subject(report, reasons)))
    page = filled(page, "rows of 0.33", rows.table(FOLDER))
    for mark in lives.TABLES:
        page = filled(page, mark, lives.table(FOLDER, mark))
    return {PAGE: page}


def matrix(reports: Mapping[str, tuple[Report, Mapping[str, str]]]) -> str:
    """Build a row per chapter: how many of the rules that apply are not contradicted."""
    columns = [report for report, _ in reports.values()]
    names = [_versioned(SUBJECTS[name], report) for name, (report, _) in reports.items()]
    lines = [f"| chapter | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    titles = chapter_titles()
    for chapter in dict.fromkeys(rule.rpartition("-")[0] for rule in columns[0]["rules"]):
        cells = [_cell(report, chapter) for report in columns]
        lines.append(f"| {chapter} {titles[chapter]} | {' | '.join(cells)} |")
    levels = " | ".join(f"**{_total(report)}**" for report in columns)
    wrong = " | ".join(str(len(wrong_rules(*report))) for report in reports.values())
    return "\n".join([*lines, f"| **all** | {levels} |", f"| of these broken: wrong | {wrong} |"])


def chapter_titles() -> dict[str, str]:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "spec/rules").glob("*.md")]
    rules = ((page, re.search(r"^### (KV-[A-Z]+)-", page, re.MULTILINE)) for page in pages)
    return {rule[1]: page.partition("\n")[0].removeprefix("# ") for page, rule in rules if rule}


def wrong_rules(report: Report, reasons: Mapping[str, str]) -> set[str]:
    """Return the broken rules whose reason calls the result wrong."""
    rules = report["rules"]
    found = (each for each in report["violations"] if rules[each["rule"]] == Verdict.BROKEN)
    return {each["rule"] for each in found if reasons.get(each["cause"], "").startswith(KINDS[0])}


def _versioned(name: str, report: Report) -> str:
    version = report["version"]
    return name if version == UNKNOWN else f"{name} {version}"


def _of_chapter(report: Report, chapter: str) -> Counter[str]:
    rules = report["rules"].items()
    return Counter(found for rule, found in rules if rule.rpartition("-")[0] == chapter)


def _cell(report: Report, chapter: str) -> str:
    """Return a cell: how many of the rules that apply are unbroken, and how many broken."""
    counts = _of_chapter(report, chapter)
    applying = counts.total() - counts[Verdict.NOT_APPLICABLE] - counts[Verdict.HIDDEN]
    if not applying:
        return "–"
    broken = f", {counts[Verdict.BROKEN]} broken" if counts[Verdict.BROKEN] else ""
    return f"{counts[Verdict.UNBROKEN]} of {applying}{broken}"


def _total(report: Report) -> str:
    counts = Counter(report["rules"].values())
    applying = counts.total() - counts[Verdict.NOT_APPLICABLE] - counts[Verdict.HIDDEN]
    return f"{counts[Verdict.UNBROKEN]} of {applying}, {counts[Verdict.BROKEN]} broken"


def subject(report: Report, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the text about one subject: runs, wrong results, other differences."""
    counts = ", ".join(f"{n} {verdict}" for verdict, n in report["counts"].items() if n)
    random = f", {report['random']:,} random programs" if report["random"] else ""
    yield (
        f"`{report['implementation']}`, {_versioned(report['subject'], report)}, level"
        f" *{report['level']}*. Rules: {counts}. Run: {report['directed']:,} directed checks"
        f" ({report['left_out']:,} left out){random}."
    )
    found = groups(report["violations"], reasons)
    wrong = [line for reason, line in found.items() if reason.startswith(KINDS[0])]
    others = [line for reason, line in found.items() if not reason.startswith(KINDS[0])]
    if wrong:
        yield f"**Wrong, {len(wrong)} causes:**"
        yield "\n".join(wrong)
    doubt = [rule for rule, verdict in report["rules"].items() if verdict == Verdict.IN_DOUBT]
    if others:
        yield f"<details><summary>{len(others)} differences of other kinds</summary>"
        yield "\n".join(others)
    if doubt:
        yield f"In doubt: {', '.join(doubt)}."
    if others:
        yield "</details>"


def groups(violations: Sequence[Report], reasons: Mapping[str, str]) -> dict[str, str]:
    """Map each reason to a line with the rules and the smallest story, folded."""
    found: dict[str, list[Report]] = {}
    for violation in violations:
        found.setdefault(reasons.get(violation["cause"], "") or KINDS[-1], []).append(violation)
    return {reason: line_of(reason, found[reason]) for reason in sorted(found, key=_gravity)}


def line_of(reason: str, violations: Sequence[Report]) -> str:
    rules = ", ".join(dict.fromkeys(each["rule"] for each in violations))
    least = min(violations, key=lambda each: (not each["story"], len(each["story"])))
    said = reason.removeprefix(f"{KINDS[0]}: ")
    expected, observed = (_cut(least[name]) for name in ("expected", "observed"))
    return (
        f"- {said[0].upper()}{said[1:]} ({rules}) <details><summary>smallest story</summary>"
        f"{story_of(least)}<br>expected: {expected}<br>observed: {observed}</details>"
    )


def _gravity(reason: str) -> tuple[int, str]:
    kind = reason.partition(":")[0]
    return KINDS.index(kind) if kind in KINDS else 0, reason


def story_of(found: Report) -> str:
    """Return the calls in short form, or the name of a check without calls."""
    if not found["story"]:
        return f"check *{found['program']}*"
    told = "; ".join(f"`{each}`" for each in found["story"])
    words = POLICY.sub("", found.get("configuration", ""))
    return f"{words}: {told}" if words else told


def _cut(text: str) -> str:
    """Return the text on one line, with Markdown and HTML escaped."""
    line = " ".join(text.split())
    line = line if len(line) <= MOST or "`" in line else f"{line[:MOST]}…"
    return re.sub(r"([*\[\]\\])", r"\\\1", escape(line, quote=False))


def filled(page: str, name: str, text: str) -> str:
    """Fill in the text between its marks; raise ValueError if they are missing."""
    begin, end = (f"<!-- {word} {name} -->\n" for word in ("begin", "end"))
    before, marked, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not marked or not closed:
        raise ValueError(f"the page lacks the lines {begin.strip()} and {end.strip()}")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def unexplained(name: str) -> list[str]:
    """List causes without a reason, and reasons without a cause."""
    report, reasons = read(name)
    causes = {each["cause"] for each in report["violations"]}
    return [f"{name}: {cause} has no reason" for cause in sorted(causes) if not reasons.get(cause)]


def main(name: str, path: Path) -> None:
    """Keep a report, and write the pages."""
    found = kept(json.loads(path.read_text(encoding="utf-8")))
    text = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
    for page, written in texts().items():
        (ROOT / page).write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
