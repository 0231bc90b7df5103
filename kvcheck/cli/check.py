"""`kvspec check`: find the rules an implementation breaks, with a small program for each."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvcheck.cli._lives import check_lives
from kvcheck.cli._options import (
    FILE,
    PATH,
    fail_fast_option,
    html_option,
    impl_argument,
    json_option,
    oracle_option,
    profile_option,
    records_option,
    rules_option,
    verbose_option,
)
from kvcheck.cli._support import (
    INTERRUPTED,
    STDOUT,
    fail,
    progress_bars,
    say,
    set_globally,
    write_json,
    write_whole,
)
from kvcheck.cli._workers import workers_for, workers_options
from kvcheck.discovery import find_implementation
from kvspec.profile import find_profile

if TYPE_CHECKING:
    from kvcheck.judge.evidence import Written
    from kvcheck.judge.expected import Asked
    from kvcheck.judge.options import Budget
    from kvcheck.judge.outcome import Reached, Report
    from kvcheck.judge.suite import Suite
    from kvcheck.play.verdicts import Level
    from kvspec.interface import Implementation


@click.command()
@impl_argument
@click.option(
    "--tier",
    "lives",
    flag_value="tier",
    help="Judge IMPL's offload manager instead (KV-TIER-9 to 31), by 400 lives of an engine, or as"
    " many as --programs says.",
)
@click.option(
    "--index",
    "lives",
    flag_value="index",
    help="Judge IMPL's index of engines instead (KV-FLEET), by as many lives of a fleet.",
)
@click.option(
    "--tree",
    "lives",
    flag_value="tree",
    help="Judge IMPL's tree of prefixes instead (KV-TREE), with its admission.",
)
@click.option(
    "--level",
    type=click.Choice(["safety", "behaviour", "identity"]),
    help="How closely the reference must be matched.  [default: identity; behaviour if IMPL has no"
    " snapshot; safety if it lacks the contract's hashes]",
)
@click.option(
    "--budget",
    type=click.Choice(["directed", "fast", "ci", "deep"]),
    default="fast",
    help="directed: the rules' examples only. fast / ci / deep: also random programs, for 30 s /"
    " some minutes / until Ctrl-C.",
)
@profile_option("The implementation's declared choices", "default")
@rules_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Seed of the random programs; equal seeds give equal programs.",
)
@click.option(
    "--programs",
    type=click.IntRange(min=0),
    metavar="N",
    help="Run exactly N random programs instead of stopping on time, so that equal runs give equal"
    " reports.",
)
@workers_options
@oracle_option()
@records_option
@html_option
@json_option()
@click.option(
    "--junit",
    "junit_path",
    type=PATH,
    metavar="FILE",
    help="Write a JUnit XML report for CI systems, with one test case per rule.",
)
@click.option(
    "--sarif", "sarif_path", type=PATH, metavar="FILE", help="Write the violations as SARIF."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "github"]),
    default="text",
    help="github: before the text also a line for each violation that GitHub shows at the run.",
)
@verbose_option
@fail_fast_option
@click.option(
    "--expect",
    type=FILE,
    metavar="FILE",
    help="Known differences: exit with 0 if exactly these are found.",
)
@click.option(
    "--write-expect",
    type=FILE,
    metavar="FILE",
    help="Write the differences found to FILE; reasons already given there are kept.",
)
def command(
    name: str,
    lives: str | None,
    level: str | None,
    budget: str,
    profile: str,
    rules: tuple[str, ...],
    seed: int,
    programs: int | None,
    jobs: int,
    cluster: str | None,
    oracle: str,
    expect: Path | None,
    write_expect: Path | None,
    fail_fast: bool,
    **outputs: Any,
) -> int:
    """Show which rules an implementation breaks, with the smallest example of each.

    The rules' examples run first and are compared with the results written in them; then random
    programs run and are compared with the reference. Each broken rule is shown with the smallest
    sequence of calls found, the expected and the observed result, and a test to paste.

    Features that IMPL does not declare are not used; the report lists the checks left out. At level
    safety, IMPL without a snapshot is judged from outside, by its block lists and its free blocks.
    The reference is not compared with itself: the verdict then says "self-checks only".

    Ctrl-C ends a run and prints the report so far, exit code 130 if the budget was not spent and
    nothing is broken; this is how `--budget deep` ends. --jobs and --cluster divide the work.

    --write-expect FILE lists the differences found. --expect FILE exits with 0 if exactly these are
    found: new ones fail, and so do listed ones that the run looked for and no longer finds.
    """
    from kvcheck.judge.expected import Asked
    from kvcheck.play.verdicts import Level

    if lives:
        beside = (level, budget != "fast", rules, jobs != 1, cluster, write_expect)
        asked = (programs or 400, seed, fail_fast, expect)
        return check_lives(lives, name, asked, beside, **outputs)
    if fail_fast and (expect or write_expect):
        fail("-x ends at the first failure; leave it out, or --expect and --write-expect")
    declared = find_profile(profile)
    suite = suite_of(
        (name, oracle),
        level=None if level is None else Level(level),
        budget=budget_of(budget, programs),
        rules=rules or ("*",),
        seed=seed,
        policy=declared.policy,
        fail_fast=fail_fast,
    )
    known = KnownFiles(expect, write_expect, Asked.of(suite.options, declared.name))
    with workers_for(jobs, cluster) as suite.workers:
        result = known.compared(run(suite))
    require_something(result, suite.subject)
    write(result, suite, **outputs)
    known.write(result)
    is_endless = budget == "deep" and programs is None
    return exit_code(result, is_accepted=known.is_accepted, is_endless=is_endless)


def suite_of(names: tuple[str, str], *, level: Level | None, **asked: Any) -> Suite:
    """Return the suite for (subject, oracle); `asked` holds the other members of `Options`."""
    from kvcheck.judge.options import Options, level_for, same_code
    from kvcheck.judge.suite import Suite

    name, oracle = names
    subject, reference = find_implementation(name), find_implementation(oracle)
    level = level_for(level, subject)
    alone = level != "safety" and same_code(subject, reference)
    options = Options(level, name=name, oracle=oracle, self_checks_only=alone, **asked)
    return Suite(subject, reference, options, find=find_implementation)


def budget_of(name: str, programs: int | None) -> Budget:
    """Return the named budget, limited to `programs` random programs unless that is None."""
    from kvcheck.judge.options import BUDGETS

    budget = dict(BUDGETS)[name]
    if programs and not budget.max_steps:
        fail(
            f"--programs {programs}: --budget {name} runs no random programs; use fast, ci or deep"
        )
    return budget if programs is None else budget.counted(programs)


def exit_code(result: Report, *, is_accepted: bool, is_endless: bool) -> int:
    """Return 0, 1 or INTERRUPTED, as the help of the command describes."""
    passes = result.conforms if result.expected is None else result.expected.agrees
    if passes and result.interrupted and not is_endless:
        return INTERRUPTED
    return 0 if passes or is_accepted else 1


class KnownFiles:
    """The files of known differences: --expect, which is read, and --write-expect, written."""

    def __init__(self, expect: Path | None, write: Path | None, asked: Asked) -> None:
        from kvcheck.judge.expected import read_expected

        self.expect, self.target, self.asked = expect, write, asked
        self.expected = () if expect is None else read_expected(expect, asked)
        has_older = write is not None and write.exists()
        self.older = read_expected(write, asked) if write is not None and has_older else ()

    @property
    def is_accepted(self) -> bool:
        """Whether findings are written but not compared, so that none is a failure."""
        return self.target is not None and self.expect is None

    def compared(self, result: Report) -> Report:
        from kvcheck.judge.expected import compare

        if self.expect is None:
            return result
        return replace(result, expected=compare(self.expect, self.expected, result))

    def write(self, result: Report) -> None:
        from kvcheck.judge.expected import expected_text, renewed

        if self.target is not None:
            listed = renewed(self.older, result)
            write_whole(self.target, expected_text(self.asked, listed).encode())


def require_something(result: Report, subject: Implementation) -> None:
    """Fail unless the run checked at least one of the chosen rules, and managers can be made."""
    from kvcheck.judge.applying import rule_outcomes
    from kvcheck.judge.outcome import Verdict
    from kvcheck.judge.report import verdict_of

    options = result.options
    has_run = bool(result.directed + result.random)
    verdicts = {found.verdict for found in rule_outcomes(result).values()}
    if result.interrupted or result.violations:
        return
    has_run &= bool(subject.capabilities.spec_types)  # without group types no manager was made
    if result.refusal:
        fail(f"{options.name} {verdict_of(result)}")
    if has_run and not verdicts <= {Verdict.NOT_EXERCISED, Verdict.NOT_APPLICABLE, Verdict.HIDDEN}:
        return
    lacking = ", ".join(lacks(result))
    if lacking:
        fail(f"nothing in {options.name} could be checked, because it lacks {lacking}")
    fail(f"no check of {', '.join(options.rules)} was run: give another --budget or --rules")


def write(
    result: Report,
    suite: Suite,
    *,
    records_path: Path | None = None,
    html_path: Path | None = None,
    json_path: Path | None = None,
    junit_path: Path | None = None,
    sarif_path: Path | None = None,
    form: str = "text",
    verbose: bool = False,
) -> None:
    """Write the report in each requested format, and print it unless JSON goes to stdout."""
    from kvcheck.judge import evidence, exchange
    from kvcheck.judge import report as reports
    from kvcheck.judge.causes import smallest_first
    from kvcheck.judge.drawing import story
    from kvcheck.judge.page import report_html
    from kvcheck.judge.telling import told

    sides = (suite.subject, suite.oracle, result.options)
    shown = [told(each, *sides) for each in result.violations]
    result = replace(result, violations=smallest_first(shown))
    remarks: list[str] = []
    if records_path is not None:
        written = evidence.write_records(result, suite.subject, suite.oracle, records_path)
        remarks = [remark(each, result.options.name) for each in written]
    if json_path is not None:
        write_json(reports.to_json(result), json_path)
    if html_path is not None:
        stories = [story(each, *sides) for each in result.violations]
        write_whole(html_path, report_html(result, remarks, stories).encode())
    if junit_path is not None:
        write_whole(junit_path, exchange.to_junit(result))
    if sarif_path is not None:
        write_json(exchange.to_sarif(result), sarif_path)
    if STDOUT in (str(json_path), str(sarif_path)):
        return
    if form == "github":
        say(*exchange.github_lines(result))
    lines = list(reports.text_lines(result, remarks, verbose=verbose))
    if set_globally("quiet"):
        lines = lines[:1]
    for number, line in enumerate(lines):
        say(line, style=style_of(number, line, conforms=result.conforms))


def style_of(number: int, line: str, *, conforms: bool) -> str | None:
    """Return the style of a line of the report: verdict, headings, the last call, both results."""
    if number == 0:
        return "bold green" if conforms else "bold red"
    if line.partition(". ")[0].isdigit():
        return "bold"
    marks = {"  >": "yellow", "  expected": "green", "  observed": "red", "  repeat": "cyan"}
    return next((style for mark, style in marks.items() if line.startswith(mark)), None)


def run(suite: Suite) -> Report:
    with progress_bars() as bars:
        bar = bars.add_task("examples", total=1.0)

        def heard(reached: Reached) -> None:
            share = reached.share
            total = None if share is None else 1.0
            text = f"{reached.phase}  {reached.note}"
            bars.update(bar, description=text, completed=share or 0.0, total=total)

        suite.progress = heard
        return suite.run()


def lacks(report: Report) -> list[str]:
    """Return all missing features for which examples were left out."""
    return sorted({lack for reasons in report.left_out.values() for lack in reasons})


def remark(written: Written, name: str) -> str:
    """Return the command that shows the record of a violation, or why there is no record."""
    if written.path is None:
        return f"none: {written.reason}"
    path = shlex.quote(str(written.path))
    if written.is_replayable:
        return f"kvspec golden {path} --impl {shlex.quote(name)}"
    return f"kvspec view {path} -o {shlex.quote(str(written.path.with_suffix('.html')))}"
