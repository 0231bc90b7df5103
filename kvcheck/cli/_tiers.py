"""`kvspec check --tier IMPL`: judge an offload manager, for `kvspec check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

from kvcheck.cli._support import fail, output_console, say, write_json
from kvcheck.discovery import find_offload
from kvcheck.offload.suite import RULES, TierFinding, TierReport, judged
from kvcheck.rulebook import rule_sentences, titled

INDENTED: Mapping[str, Any] = MappingProxyType({"initial_indent": "  ", "subsequent_indent": "  "})
MOST_LINES = 24
"""Lines of calls that are shown of a finding without -v: the first and the last of them."""


def check_tier(
    name: str,
    asked: tuple[int, int, bool],
    given: tuple[object, ...],
    *,
    verbose: bool,
    json_path: Path | None,
    **others: Any,
) -> int:
    """Play lives on the subject and show each broken rule; `asked`: how many, seed, fail_fast.

    Returns the exit code: 1 if a rule is broken. `given` and `others`: options and outputs that
    only a check of a KV-cache manager has.
    """
    if any(given) or any(isinstance(each, Path) for each in others.values()):
        fail("--tier goes with --programs, --seed, -x, -v and --json alone")
    if name.startswith(("cmd:", "cmd+")):
        fail("an offload manager is judged in Python; kvspec.offload says what a factory makes")
    num_lives, seed, fail_fast = asked
    report = judged(find_offload(name), num_lives=num_lives, seed=seed, fail_fast=fail_fast)
    console = output_console(json_path)
    say(*text_lines(name, report, is_long=verbose), console=console)
    if json_path is not None:
        write_json(document(name, report), json_path)
    return int(bool(report.findings))


def text_lines(name: str, report: TierReport, *, is_long: bool) -> Iterator[str]:
    """Yield the verdict, each finding with its calls, and what was tried."""
    tried = [rule for rule in RULES if report.tried[rule]]
    broken = sorted(report.findings, key=_place)
    verdict = f"{len(broken)} of {len({*tried, *broken})} rules broken"
    if not report.findings:
        verdict = f"all {len(tried)} rules that lives judge hold"
    yield f"{name}: {verdict}"
    for rule in broken:
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
    yield titled(found.rule)
    yield from wrap(rule_sentences().get(found.rule, ""), 76, **INDENTED)
    yield from wrap(found.problem, 76, **INDENTED)
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


def _place(rule: str) -> int:
    return int(rule.rpartition("-")[2])


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
            for _, each in sorted(report.findings.items(), key=lambda item: _place(item[0]))
        ],
    }
