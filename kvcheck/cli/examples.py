"""`kvspec examples`: run the rules' examples on an implementation."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kvcheck.cli._options import (
    FOLDER,
    fail_fast_option,
    impl_argument,
    json_option,
    profile_option,
    rules_option,
    verbose_option,
)
from kvcheck.cli._support import fail, output_console, say, write_json
from kvcheck.discovery import find_implementation, find_served
from kvcheck.play.verdicts import Violation
from kvcheck.rulebook import stated
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.running import OPEN_ANSWER, Outcome, blessed, outcomes_of
from kvcheck.rules.notation.shipped import shipped_stories, stories_in
from kvspec.profile import find_profile


@click.command()
@impl_argument
@click.option(
    "--folder",
    type=FOLDER,
    metavar="DIR",
    help="Run the examples in the .md and .kv files of DIR instead of the shipped ones.",
)
@rules_option
@profile_option("Policies to configure", "default")
@fail_fast_option
@verbose_option
@json_option()
@click.option(
    "--bless",
    is_flag=True,
    help=f"Replace each result '{OPEN_ANSWER}' in the files of --folder by IMPL's result.",
)
def command(
    name: str,
    folder: Path | None,
    rules: tuple[str, ...],
    profile: str,
    fail_fast: bool,
    verbose: bool,
    json_path: Path | None,
    bless: bool,
) -> int:
    """Run the rules' examples on an implementation and show each failure.

    An example is a few lines of text below its rule: a configuration, then one call per line with
    its expected result. spec/examples.md in the repository describes the notation. Examples that
    need a feature IMPL lacks are left out; the last lines count them by feature. With -v each
    example has a line as it runs.

    Exit code 0: all examples that ran passed, 1: some failed, 2: could not run.
    """
    subject = find_served(name)
    if bless:
        if folder is None:
            fail("--bless needs --folder")
        return _bless(folder, name)
    console = output_console(json_path)
    try:
        stories = shipped_stories() if folder is None else tuple(stories_in(folder))
        wanted = [
            each
            for each in stories
            if not rules or any(fnmatch.filter(each.rules, pattern) for pattern in rules)
        ]
        found: list[Outcome] = []
        for outcome in outcomes_of(wanted, subject, find_profile(profile).policy):
            found.append(outcome)
            if verbose:
                state = "failed" if outcome.violation else "passed"
                state = f"without {outcome.left_out}" if outcome.left_out else state
                state += f" in part, without {outcome.in_part}" if outcome.in_part else ""
                say(f"{outcome.story.path}: {outcome.story.name}: {state}", console=console)
            if outcome.violation is not None:
                _show(outcome, outcome.violation, console)
                if fail_fast:
                    break
    except NotationError as error:
        fail(str(error))
    write_json([_row(outcome) for outcome in found], json_path)
    _summary(subject.capabilities.name, found, console)
    return int(any(outcome.violation for outcome in found))


def _bless(folder: Path, name: str) -> int:
    """Fill in open results in the files of a folder with those of the implementation."""
    for path in sorted((*folder.rglob("*.md"), *folder.rglob("*.kv"))):
        text = path.read_text(encoding="utf-8")
        try:
            filled = blessed(text, str(path), find_implementation(name))
        except NotationError as error:
            fail(str(error))
        if filled != text:
            path.write_text(filled, encoding="utf-8")
            say(f"{path}: results filled in")
    return 0


def _show(outcome: Outcome, violation: Violation, console: Console) -> None:
    lines = [outcome.place or f"{outcome.story.path}: {outcome.story.name}"]
    lines += [f"  expected  {violation.expected}", f"  got       {violation.observed}"]
    if outcome.state:
        lines += ["  before", *(f"    {line}" for line in outcome.state.split("\n"))]
    lines += [f"  {stated(rule)}" for rule in outcome.story.rules[:1]]
    say(*lines, "", console=console)


def _row(outcome: Outcome) -> dict[str, Any]:
    violation, place = outcome.violation, outcome.place or outcome.story.path
    row: dict[str, Any] = {
        "example": outcome.story.name,
        "place": place,
        "rules": list(outcome.story.rules),
    }
    row |= {"passed": not (violation or outcome.left_out), "lacks": outcome.left_out}
    row |= {"lacks_in_part": outcome.in_part}
    if violation is None:
        return row
    return row | {"expected": violation.expected, "observed": violation.observed}


def _summary(name: str, found: Sequence[Outcome], console: Console) -> None:
    failed = sum(outcome.violation is not None for outcome in found)
    left_out = [outcome.left_out.split(", ") for outcome in found if outcome.left_out]
    lacks = Counter(lack for each in left_out for lack in each).most_common()
    passed = len(found) - failed - len(left_out)
    in_part = sum(bool(outcome.in_part) for outcome in found)
    partly = f", {in_part} of them in part" if in_part else ""
    text = f"{name}: {passed} examples passed{partly}, {failed} failed, {len(left_out)} left out"
    if lacks:
        text += "\nleft out without: " + ", ".join(f"{lack} ({count})" for lack, count in lacks)
    say(text, console=console)
