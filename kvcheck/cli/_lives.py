"""`kvspec check` of a tier, an index or a tree: judge by lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

from kvcheck.cli._support import fail, output_console, say, write_json
from kvcheck.discovery import find_index, find_offload, find_tree
from kvcheck.fleet.suite import game_of as index_game
from kvcheck.offload.suite import game_of as offload_game
from kvcheck.play.lives import Finding, Game, LivesReport, judged
from kvcheck.rulebook import rule_sentences, titled
from kvcheck.tree.suite import game_of as tree_game

INDENTED: Mapping[str, Any] = MappingProxyType({"initial_indent": "  ", "subsequent_indent": "  "})
MOST_LINES = 24
"""Lines of calls that are shown of a finding without -v: the first and the last of them."""


def check_lives(
    kind: str,
    name: str,
    asked: tuple[int, int, bool],
    given: tuple[object, ...],
    *,
    verbose: bool,
    json_path: Path | None,
    **others: Any,
) -> int:
    """Play lives on the subject and show each broken rule; `asked`: how many, seed, fail_fast.

    `kind` is "tier", "index" or "tree". Returns the exit code: 1 if a rule is broken. `given` and
    `others`: options and outputs that only a check of a KV-cache manager has.
    """
    if any(given) or any(isinstance(each, Path) for each in others.values()):
        fail(f"--{kind} goes with --programs, --seed, -x, -v and --json alone")
    num_lives, seed, fail_fast = asked
    game = _game(kind, name)
    report = judged(game, num_lives=num_lives, seed=seed, fail_fast=fail_fast)
    console = output_console(json_path)
    say(*text_lines(name, report, is_long=verbose), console=console)
    if json_path is not None:
        write_json(document(name, report), json_path)
    return int(bool(report.findings))


def _game(kind: str, name: str) -> Game[Any]:
    if kind == "index":
        return index_game(find_index(name))
    if name.startswith(("cmd:", "cmd+")) and kind == "tree":
        fail("a tree is judged in Python; kvspec.tree says what a factory makes")
    if kind == "tree":
        return tree_game(find_tree(name))
    if name.startswith(("cmd:", "cmd+")):
        fail("an offload manager is judged in Python; kvspec.offload says what a factory makes")
    return offload_game(find_offload(name))


def text_lines(name: str, report: LivesReport, *, is_long: bool) -> Iterator[str]:
    """Yield the verdict, each finding with its calls, and what was tried."""
    tried = [rule for rule in report.rules if report.tried[rule]]
    verdict = f"{len(report.findings)} of {len({*tried, *report.findings})} rules broken"
    if not report.findings:
        verdict = f"all {len(tried)} rules that lives judge hold"
    yield f"{name}: {verdict}"
    for found in report.findings.values():
        yield from ("", *_finding_lines(found, is_long=is_long))
    yield ""
    if is_long:
        yield from (f"  {rule:<11} tried {report.tried[rule]:,} times" for rule in report.rules)
    idle = [rule for rule in report.rules if rule not in tried]
    if idle:
        yield from wrap(f"not tried: {', '.join(idle)}", 78, break_on_hyphens=False)
    yield f"{report.num_lives:,} lives in {report.seconds:.1f} s"


def _finding_lines(found: Finding, *, is_long: bool) -> Iterator[str]:
    yield titled(found.rule)
    yield from wrap(rule_sentences().get(found.rule, ""), 76, **INDENTED)
    yield from wrap(found.problem, 76, **INDENTED)
    yield from (f"  or else: {titled(rule)}" for rule in found.others)
    setting = ", ".join(f"{name} {value}" for name, value in found.setting.items())
    yield f"  {setting}; the calls and their results:"
    lines = list(found.lines)
    if len(lines) > MOST_LINES and not is_long:
        half = MOST_LINES // 2
        left = f"… {len(lines) - MOST_LINES} more: all with -v"
        lines = [*lines[:half], left, *lines[-half:]]
    yield from (f"    {line}" for line in lines)


def document(name: str, report: LivesReport) -> dict[str, Any]:
    """Return the report as JSON."""
    return {
        "subject": name,
        "num_lives": report.num_lives,
        "seconds": round(report.seconds, 3),
        "tried": {rule: report.tried[rule] for rule in report.rules},
        "findings": [
            {
                "rule": each.rule,
                "others": list(each.others),
                "problem": each.problem,
                **each.setting,
                "calls": list(each.lines),
            }
            for each in report.findings.values()
        ],
    }
