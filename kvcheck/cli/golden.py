"""`kvspec golden`: replay records against an implementation and show every difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import click

from kvcheck.cli._options import (
    PATH,
    fail_fast_option,
    impl_option,
    json_option,
    profile_option,
    verbose_option,
)
from kvcheck.cli._support import fail, output_console, progress_bars, say, write_json
from kvcheck.discovery import find_implementation
from kvcheck.play.state import View
from kvcheck.records.planning import replay_planning
from kvcheck.records.report import Report, Result, counts, result_lines
from kvcheck.records.select import Candidate, choose, find, scenarios_of, shipped_records
from kvcheck.records.trace import replay_trace
from kvspec.interface import Implementation
from kvspec.profile import Profile, find_profile
from kvspec.record import Operation

_SECONDS_BETWEEN_UPDATES = 0.1


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=PATH)
@impl_option(required=True)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help="Replay only traces of this scenario. May be repeated.",
)
@json_option()
@profile_option("Policies of records that name none")
@verbose_option
@fail_fast_option
def command(
    paths: tuple[Path, ...],
    name: str,
    scenarios: tuple[str, ...],
    json_path: Path | None,
    profile: str,
    verbose: bool,
    fail_fast: bool,
) -> int:
    """Replay records against an implementation and show every difference.

    PATH is a record file, or a folder that is searched recursively for *.jsonl and *.jsonl.gz;
    without PATH, the records shipped with kvspec are replayed. Each result and the state after it
    must match the record; a trace ends at the first difference. Errors are compared by class, never
    by message (in planning records an AssertionError matches any typed error). A trace stops, and
    passes, at an operation marked with a quirk. --profile supplies the policy of records that name
    none.

    Records that need a feature the implementation does not declare are left out and counted
    separately. The last line counts traces and planning records.

    Exit code 0: none failed, 1: some did, 2: could not run.
    """
    implementation = find_implementation(name)
    chosen_profile = find_profile(profile)
    candidates = find(paths or [shipped_records()])
    chosen = choose(candidates, scenarios)
    if not chosen:
        known = ", ".join(scenarios_of(candidates)) or "none"
        fail(f"no trace is of these; scenarios found: {known}")
    console = output_console(json_path)
    results: list[Result] = []
    for result in _replay(chosen, implementation, chosen_profile, fail_fast=fail_fast):
        results.append(result)
        say(*result_lines(result, verbose=verbose), console=console)
    report = Report(
        implementation.capabilities.name,
        tuple(results),
        len(chosen) - len(results),
        profile=chosen_profile.name,
    )
    write_json(report.to_json(), json_path)
    say(*report.closing_lines(), console=console)
    if not report.passed + report.failed:
        fail(
            f"no record could be replayed: {report.implementation} lacks {', '.join(report.lacks)}"
        )
    return 1 if report.failed else 0


def _replay(
    chosen: list[Candidate],
    implementation: Implementation,
    profile: Profile,
    *,
    fail_fast: bool,
) -> Iterator[Result]:
    """Replay the files in turn, with a progress bar on stderr if that is a terminal."""
    with progress_bars(counts=True) as progress:
        bar = progress.add_task("replaying", total=len(chosen))
        due = 0.0

        def follow(operation: Operation | None, view: View) -> None:
            """Show the current operation on the bar, for long records."""
            nonlocal due
            if operation is not None and monotonic() >= due:
                due = monotonic() + _SECONDS_BETWEEN_UPDATES
                place = f"{candidate.path.name}, operation {operation.index:,}"
                progress.update(bar, description=place)

        for candidate in chosen:
            progress.update(bar, description=candidate.path.name)
            if candidate.is_planning:
                result: Result = replay_planning(
                    candidate.path, implementation, policy=profile.policy, fail_fast=fail_fast
                )
            else:
                result = replay_trace(
                    candidate.path, implementation, policy=profile.policy, watch=follow
                )
            progress.advance(bar)
            yield result
            if fail_fast and counts(result)[1]:
                return
