"""`kvspec check`: which rules an implementation breaks, each with the smallest program found."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvcheck.cli._support import (
    fail,
    output_console,
    progress_bars,
    read_state,
    require_extra,
    write_json,
    write_state,
    write_whole,
)
from kvcheck.discovery import find_implementation
from kvspec.profile import find_profile

if TYPE_CHECKING:
    from kvcheck.judge.evidence import Written
    from kvcheck.judge.outcome import Report
    from kvcheck.judge.state import State
    from kvcheck.judge.suite import Reached, Suite

INTERRUPTED = 130


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
    type=click.Choice(["static", "directed", "fast", "ci", "deep"]),
    default="fast",
    show_default=True,
    help="Static vectors only; directed programs, too; or random ones, too: half a minute, some"
    " minutes, until Ctrl-C.",
)
@click.option(
    "--profile",
    default="default",
    show_default=True,
    help="The implementation's declared choices: a shipped profile or a TOML file.",
)
@click.option("--rules", multiple=True, metavar="GLOB", help="Only these rules, e.g. 'KV-POOL-*'.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the random programs; the same seed makes the same ones.",
)
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
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as one page that needs no network.",
)
@click.option(
    "--resume",
    "resume_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep there how far the run is, and go on from there if the file exists.",
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
    resume_path: Path | None,
    **outputs: Path | None,
) -> int:
    """Show which rules an implementation breaks, with the smallest example of each.

    Static vectors come first: recorded walks along every edge of small graphs, compared as they
    stand (not at level safety). Directed programs follow, then random ones. Each broken rule is
    shown with the smallest sequence of calls found, expected and observed, and a test to paste.

    Only what the implementation says it has is asked of it; the report names what was left out. At
    level safety one that shows no snapshot is judged from outside, by its block lists and its
    number of free blocks. Who is the oracle itself has nothing to compare with: static vectors,
    examples and invariants decide, and the verdict says "self-checks only".

    Ctrl-C ends a run with the report of what was found until then; that is how `--budget deep`
    ends. With --resume FILE the same command goes on later, trying again first what was broken.

    Exit code 0: no rule is broken, 1: some are, 2: it could not run, 130: interrupted before the
    budget was spent, and nothing was broken until then.
    """
    require_extra("hypothesis", "conformance")
    from kvcheck.judge.options import BUDGETS, Options, same_code
    from kvcheck.judge.suite import Suite
    from kvcheck.play.verdicts import Level
    from kvcheck.rulebook import rule_sentences

    subject, reference = find_implementation(name), find_implementation(oracle)
    options = Options(
        Level(level),
        dict(BUDGETS)[budget],
        rules or ("*",),
        seed,
        find_profile(profile).policy,
        name=name,
        oracle=oracle,
        self_checks_only=level != "safety" and same_code(subject, reference),
    )
    if not any(_fits(rule, options.rules) for rule in rule_sentences()):
        fail(f"no rule fits {', '.join(rules)}; rules are named like KV-POOL-4")

    def save(reached: State) -> None:
        if resume_path is not None:
            write_state(reached.to_json(), resume_path)

    suite = Suite(subject, reference, options, save=save)
    result = run(suite, earlier_run(resume_path))
    require_something(result)
    write(result, suite, **outputs)
    if result.conforms and result.interrupted and budget != "deep":
        return INTERRUPTED
    return 0 if result.conforms else 1


def require_something(result: Report) -> None:
    """Fail unless anything at all was asked of the subject."""
    if result.static.walks + result.directed + result.random or result.interrupted:
        return
    options = result.options
    if not options.budget.directed and options.level == "safety":
        fail("level safety compares with no record: give another --budget or --level")
    lacking = ", ".join(lacks(result))
    fail(f"{options.name} has nothing that could be checked: {lacking} is lacking")


def write(
    result: Report,
    suite: Suite,
    *,
    records_path: Path | None = None,
    html_path: Path | None = None,
    json_path: Path | None = None,
    junit_path: Path | None = None,
) -> None:
    """Write the report in every form that was asked for; as text unless JSON goes to stdout."""
    from kvcheck.judge import evidence
    from kvcheck.judge import report as reports
    from kvcheck.judge.page import report_html

    remarks: list[str] = []
    if records_path is not None:
        written = evidence.write_records(result, suite.subject, suite.oracle, records_path)
        remarks = [remark(each, result.options.name) for each in written]
    if json_path is not None:
        write_json(reports.to_json(result), json_path)
    if html_path is not None:
        write_whole(html_path, report_html(result, remarks).encode())
    if junit_path is not None:
        write_whole(junit_path, reports.to_junit(result))
    if str(json_path) != "-":
        output = output_console()
        for line in reports.text_lines(result, remarks):
            output.print(line, markup=False, soft_wrap=True)


def run(suite: Suite, state: State | None) -> Report:
    """Run the suite with a bar on stderr where that is a terminal."""
    with progress_bars() as bars:
        bar = bars.add_task("static", total=1.0)

        def heard(reached: Reached) -> None:
            share = reached.share
            total = None if share is None else 1.0
            text = f"{reached.phase}  {reached.note}"
            bars.update(bar, description=text, completed=share or 0.0, total=total)

        suite.progress = heard
        return suite.run(state)


def earlier_run(path: Path | None) -> State | None:
    """How far an earlier run came, None without one; FormatError if the file holds none."""
    from kvcheck.judge.state import State

    found = None if path is None else read_state(path, "check")
    return None if found is None else State.from_json(*found)


def lacks(report: Report) -> list[str]:
    """Everything that vectors and programs were left out for."""
    left_out = (*report.static.left_out.values(), *report.left_out.values())
    return sorted({lack for reasons in left_out for lack in reasons})


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
