"""`kvspec check --tier IMPL`: judge an offload manager, for `kvspec check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvcheck.cli._support import output_console, say, write_json
from kvcheck.discovery import find_offload
from kvcheck.offload.suite import RULES, TierFinding, TierReport, judged
from kvcheck.rulebook import stated, titled

MOST_LINES = 24
"""Lines of calls that are shown of a finding without -v: the first and the last of them."""


def check_tier(
    name: str, asked: Mapping[str, Any], *, verbose: bool, json_path: Path | None
) -> int:
    """Play lives on the subject, `asked` as of `judged`, and show each broken rule.

    Returns the exit code: 1 if there is one.
    """
    report = judged(find_offload(name), **asked)
    console = output_console(json_path)
    say(*text_lines(name, report, is_long=verbose), console=console)
    if json_path is not None:
        write_json(document(name, report), json_path)
    return int(bool(report.findings))


def text_lines(name: str, report: TierReport, *, is_long: bool) -> Iterator[str]:
    """Yield the verdict, each finding with its calls, and what was tried."""
    tried = [rule for rule in RULES if report.tried[rule]]
    broken = [rule for rule in RULES if rule in report.findings]
    others = [rule for rule in report.findings if rule not in RULES]
    verdict = f"{len(broken) + len(others)} of {len(tried) + len(others)} rules broken"
    if not report.findings:
        verdict = f"all {len(tried)} rules that lives judge hold"
    yield f"{name}: {verdict}"
    for rule in [*broken, *others]:
        yield from ("", *_finding_lines(report.findings[rule], is_long=is_long))
    yield ""
    if is_long:
        yield from (f"  {rule:<11} tried {report.tried[rule]:,} times" for rule in RULES)
    idle = [rule for rule in RULES if rule not in tried]
    if idle:
        yield f"not tried: {', '.join(idle)}"
    yield f"{report.num_lives:,} lives in {report.seconds:.1f} s"


def _finding_lines(found: TierFinding, *, is_long: bool) -> Iterator[str]:
    life = found.life
    yield stated(found.rule)
    yield f"  {found.problem}"
    if found.other not in ("", found.rule):
        yield f"  or only the counts are wrong: {titled(found.other)}"
    places = "1 place" if life.num_chunks == 1 else f"{life.num_chunks} places"
    yield f"  {places}, lower tiers: {life.num_lower}; the calls and their results:"
    lines = list(found.lines)
    if len(lines) > MOST_LINES and not is_long:
        half = MOST_LINES // 2
        left = f"… {len(lines) - MOST_LINES} more: all with -v"
        lines = [*lines[:half], left, *lines[-half:]]
    yield from (f"    {line}" for line in lines)


def document(name: str, report: TierReport) -> dict[str, Any]:
    """Return the report as JSON."""
    return {
        "subject": name,
        "num_lives": report.num_lives,
        "seconds": round(report.seconds, 3),
        "tried": {rule: report.tried[rule] for rule in RULES},
        "findings": [
            {
                "rule": each.rule,
                "other": each.other or None,
                "problem": each.problem,
                "num_chunks": each.life.num_chunks,
                "num_lower": each.life.num_lower,
                "calls": list(each.lines),
            }
            for each in report.findings.values()
        ],
    }
