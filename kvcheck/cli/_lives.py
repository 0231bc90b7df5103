"""`kvspec check` of a tier, an index or a tree: judge by lives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

from kvcheck.cli._support import fail, output_console, say, write_json
from kvcheck.discovery import ORACLE, find_index, find_offload, find_tree
from kvcheck.fleet.suite import game_of as index_game
from kvcheck.offload.alone import OffloadAlone
from kvcheck.offload.suite import RULES
from kvcheck.offload.suite import game_of as offload_game
from kvcheck.play.lives import Finding, Game, LivesReport, judged
from kvcheck.rulebook import rule_sentences, titled
from kvcheck.rules.notation.running import Outcome, outcomes_of
from kvcheck.rules.notation.shipped import shipped_stories
from kvcheck.tree.suite import game_of as tree_game
from kvspec.files.jsonlines import read_bounded
from kvspec.files.objects import Where, checked_members, list_of, text
from kvspec.files.toml import parse_toml
from kvspec.interface import Implementation
from kvspec.offload import OffloadImplementation
from kvspec.policy import Policy

INDENTED: Mapping[str, Any] = {"initial_indent": "  ", "subsequent_indent": "  "}
MOST_BYTES = 2**18
"""Of a file of known differences."""
MOST_LINES = 24
"""Lines of calls that are shown of a finding without -v: the first and the last of them."""


def check_lives(
    kind: str,
    name: str,
    asked: tuple[int, int, bool, Path | None],
    given: tuple[object, ...],
    *,
    verbose: bool,
    json_path: Path | None,
    **others: Any,
) -> int:
    """Play lives, and a tier's examples, and show each broken rule.

    `asked`: how many lives, seed, fail_fast, a file of known differences. `kind` is "tier", "index"
    or "tree". Returns the exit code: 1 if a rule is broken, or other rules than the file lists.
    `given` and `others`: options and outputs that only a check of a KV-cache manager has.
    """
    if any(given) or any(isinstance(each, Path) for each in others.values()):
        fail(f"--{kind} goes with --programs, --seed, -x, -v, --json and --expect alone")
    num_lives, seed, fail_fast, expect = asked
    known = read_known(expect) if expect else {}
    examples: tuple[Outcome, ...] = ()
    if kind == "tier":
        subject = find_offload(name)
        game: Game[Any] = offload_game(subject)
        examples = tuple(examples_on(subject))
    else:
        game = _game(kind, name)
    report = judged(game, num_lives=num_lives, seed=seed, fail_fast=fail_fast)
    console = output_console(json_path)
    say(*text_lines(name, report, examples, is_long=verbose), console=console)
    write_json(document(name, report, examples), json_path)
    broken = {*report.findings, *(each.story.rules[0] for each in examples if each.violation)}
    if expect:
        say(*expected_lines(broken, known), console=console)
    return int(broken != set(known))


def read_known(path: Path) -> dict[str, str]:
    """Return the reason of each rule that a file lists as broken. Raises FormatError."""
    where = Where(str(path))
    texts = {"about": text, "declared": text}
    known = partial(checked_members, required={"rule": text, "reason": text}, optional={})
    data = parse_toml(read_bounded(path, most_bytes=MOST_BYTES), where)
    found = checked_members(data, where, {}, {**texts, "known": list_of(known)})
    return {each["rule"]: each["reason"] for each in found.get("known", ())}


def expected_lines(broken: Collection[str], known: Mapping[str, str]) -> Iterator[str]:
    """Yield the rules that are broken as a file says, those it lacks, and those that are not."""
    for rule, reason in known.items():
        yield from _wrapped(f"{'known' if rule in broken else 'gone'}: {rule}: {reason}")
    new = sorted(set(broken) - set(known))
    yield from _wrapped(f"new: {', '.join(new)}") if new else ()


def _game(kind: str, name: str) -> Game[Any]:
    if kind == "index":
        model = "kvfast" if name == ORACLE else ORACLE  # nothing is judged beside itself
        return index_game(find_index(name), find_index(model))
    return tree_game(find_tree(name))


def examples_on(subject: OffloadImplementation) -> Iterator[Outcome]:
    """Play the examples of the rules that lives of a tier judge."""
    stories = [each for each in shipped_stories() if set(each.rules) & set(RULES)]
    whole = subject if isinstance(subject, Implementation) else OffloadAlone(subject)
    yield from outcomes_of(stories, whole, Policy())


def text_lines(
    name: str, report: LivesReport, examples: Sequence[Outcome] = (), *, is_long: bool
) -> Iterator[str]:
    """Yield the verdict, each finding with its calls, and what was tried."""
    failed = {each.story.rules[0]: each for each in examples if each.violation}
    others = {rule: each for rule, each in failed.items() if rule not in report.findings}
    played = {each.story.rules[0] for each in examples if not each.left_out}
    tried = [rule for rule in report.rules if report.tried[rule] or rule in played]
    num_broken = len(report.findings) + len(others)
    verdict = f"{num_broken} of {len({*tried, *report.findings})} rules broken"
    yield f"{name}: {verdict if num_broken else f'all {len(tried)} rules that were tried hold'}"
    for found in report.findings.values():
        yield from ("", *_finding_lines(found, is_long=is_long))
    for rule, each in others.items() if is_long or not report.findings else ():
        yield from ("", *_example_lines(rule, each))
    yield ""
    if report.findings and others and not is_long:
        yield from _wrapped(f"failing examples besides: {', '.join(others)}; -v shows them")
    if is_long:
        yield from (f"  {rule:<11} tried {report.tried[rule]:,} times" for rule in report.rules)
    idle = [rule for rule in report.rules if rule not in tried]
    if idle:
        yield from _wrapped(f"not tried: {', '.join(idle)}")
    if report.num_unsteady:
        yield f"broke a rule once, and not when played again: {report.num_unsteady} lives"
    lacks = sorted({each.left_out for each in examples if each.left_out})
    done = f"{report.num_lives:,} lives in {report.seconds:.1f} s"
    if examples:
        done += f", {sum(not each.left_out for each in examples)} examples"
    yield from _wrapped(done + (f"; left out without: {'; '.join(lacks)}" if lacks else ""))


def _wrapped(text: str) -> list[str]:
    return wrap(text, 78, break_on_hyphens=False)


def _example_lines(rule: str, found: Outcome) -> Iterator[str]:
    yield titled(rule)
    yield from wrap(rule_sentences().get(rule, ""), 76, **INDENTED)
    if found.violation is not None:
        yield from wrap(f"the example, {found.place or found.story.path}", 76, **INDENTED)
        yield from wrap(f"expected  {found.violation.expected}", 76, **INDENTED)
        yield from wrap(f"got       {found.violation.observed}", 76, **INDENTED)


def _finding_lines(found: Finding, *, is_long: bool) -> Iterator[str]:
    yield titled(found.rule)
    yield from wrap(rule_sentences().get(found.rule, ""), 76, **INDENTED)
    yield from wrap(found.problem, 76, **INDENTED)
    yield from (f"  or else: {titled(rule)}" for rule in found.others)
    setting = ", ".join(f"{name} {value}" for name, value in found.setting.items())
    yield from wrap(f"{setting}; the calls and their results:", 76, **INDENTED)
    lines = list(found.lines)
    if len(lines) > MOST_LINES and not is_long:
        half = MOST_LINES // 2
        left = f"… {len(lines) - MOST_LINES} more: all with -v"
        lines = [*lines[:half], left, *lines[-half:]]
    yield from (f"    {line}" for line in lines)


def document(name: str, report: LivesReport, examples: Sequence[Outcome] = ()) -> dict[str, Any]:
    """Return the report as JSON."""
    failed = [each for each in examples if each.violation is not None]
    return {
        "subject": name,
        "num_lives": report.num_lives,
        "num_unsteady": report.num_unsteady,
        "seconds": round(report.seconds, 3),
        "tried": {rule: report.tried[rule] for rule in report.rules},
        "findings": [
            {
                "rule": each.rule,
                "others": list(each.others),
                "problem": each.problem,
                "life": each.number,
                **each.setting,
                "calls": list(each.lines),
            }
            for each in report.findings.values()
        ],
        "examples": {
            "num_passed": sum(not (each.violation or each.left_out) for each in examples),
            "failed": [{"rule": each.story.rules[0], "place": each.place} for each in failed],
            "left_out": {e.story.rules[0]: e.left_out for e in examples if e.left_out},
        },
    }
