"""`kvspec check`: which rules an implementation breaks, each with the smallest program found."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvspec.cli._support import (
    fail,
    output_console,
    progress_console,
    require_extra,
    write_json,
    write_whole,
)
from kvspec.discovery import find_implementation
from kvspec.profile import find_profile

if TYPE_CHECKING:
    from kvspec.conformance.evidence import Written


@click.command()
@click.argument("name", metavar="IMPL")
@click.option(
    "--level",
    type=click.Choice(["safety", "behaviour", "identity"]),
    default="identity",
    show_default=True,
    help="How much must be equal to the reference.",
)
@click.option(
    "--budget",
    type=click.Choice(["directed", "fast", "ci", "deep"]),
    default="fast",
    show_default=True,
    help="Directed programs only, or random ones too: half a minute, some minutes, until stopped.",
)
@click.option(
    "--profile",
    default="default",
    show_default=True,
    help="The implementation's declared choices: a shipped profile or a TOML file.",
)
@click.option("--rules", multiple=True, metavar="GLOB", help="Only these rules, e.g. 'KV-POOL-*'.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--oracle", default="kvref", show_default=True, metavar="IMPL", help="What to compare with."
)
@click.option(
    "--records",
    "records_path",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each violation as a record there, for kvspec golden, view, shrink and redact.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write a report."
)
@click.option(
    "--junit",
    "junit_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report with one test case per rule, as CI systems read it.",
)
def command(
    name: str,
    level: str,
    budget: str,
    profile: str,
    rules: tuple[str, ...],
    seed: int,
    oracle: str,
    records_path: Path | None,
    json_path: Path | None,
    junit_path: Path | None,
) -> int:
    """Show which rules an implementation breaks, with the smallest example of each.

    Directed programs come first, random ones after. Each broken rule is shown with the smallest
    sequence of calls found, what was expected and what came, and a test to paste. Needs the extra
    `conformance`. Exit code 0: no rule is broken, 1: some are, 2: it could not run.
    """
    require_extra("hypothesis", "conformance")
    from kvspec.conformance import evidence
    from kvspec.conformance import report as reports
    from kvspec.conformance.suite import BUDGETS, Options, Suite, rule_sentences
    from kvspec.conformance.verdicts import Level

    subject, reference = find_implementation(name), find_implementation(oracle)
    options = Options(
        Level(level),
        dict(BUDGETS)[budget],
        rules or ("*",),
        seed,
        find_profile(profile).policy,
        name=name,
        oracle=oracle,
    )
    if not any(_fits(rule, options.rules) for rule in rule_sentences()):
        fail(f"no rule fits {', '.join(rules)}; rules are named like KV-POOL-4")
    console = progress_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        bar = bars.add_task("directed", total=1.0)
        suite = Suite(
            subject,
            reference,
            options,
            lambda phase, share: bars.update(bar, description=phase, completed=share),
        )
        result = suite.run()
    remarks: list[str] = []
    if records_path is not None:
        written = evidence.write_records(result, subject, reference, records_path)
        remarks = [remark(each, name) for each in written]
    if json_path is not None:
        write_json(reports.to_json(result), json_path)
    if junit_path is not None:
        write_whole(junit_path, reports.to_junit(result))
    if str(json_path) != "-":
        output = output_console()
        for line in reports.text_lines(result, remarks):
            output.print(line, markup=False, soft_wrap=True)
    return 0 if result.conforms else 1


def remark(written: Written, name: str) -> str:
    """One line about the record of a violation, with the command that shows it."""
    if written.path is None:
        return f"none: {written.reason}"
    path = shlex.quote(str(written.path))
    if written.is_replayable:
        return f"kvspec golden {path} --impl {shlex.quote(name)}"
    return f"kvspec view {path} -o {shlex.quote(str(written.path.with_suffix('.html')))}"


def _fits(rule: str, patterns: tuple[str, ...]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(rule, pattern) for pattern in patterns)
