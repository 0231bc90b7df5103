"""All mutants of a target, and the page about them."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.mutation import counts, explained, killers, table
from tests.mutation.coverage_map import Measuring, Reach
from tests.mutation.explained import Explained
from tests.mutation.generate import Mutant, SourceFile, drawn, mutants_of
from tests.mutation.runner import (
    Judging,
    Outcome,
    Result,
    as_json,
    from_json,
    in_a_fork,
    pytest_arguments,
)
from tests.mutation.targets import TARGETS, Target

SEED = 1
"""Of the mutants that stand for a target too large to be tried whole."""


def chosen_of(target: Target) -> list[Mutant]:
    """All mutants of a target, or those that stand for them."""
    mutants = mutants_of(target)
    return mutants if target.sample is None else drawn(mutants, target.sample, SEED)


def known_results(target: Target, folder: Path) -> dict[str, Result]:
    """What an earlier run found, the latest word on each mutant."""
    file = folder / f"{target.name}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {result.name: result for result in map(from_json, lines)}


def run(target: Target, folder: Path, *, jobs: int, budget_s: float, again: bool) -> None:
    """Try the mutants of which nothing is known yet, or with `again` those that lived."""
    known = known_results(target, folder)
    mutants = [
        mutant
        for mutant in chosen_of(target)
        if mutant.name not in known or (again and known[mutant.name].outcome is Outcome.SURVIVED)
    ]
    if not mutants:
        return
    folder.mkdir(parents=True, exist_ok=True)
    reach = measured(target, mutants)
    with (folder / f"{target.name}.jsonl").open("a", encoding="utf-8") as file:

        def finished(result: Result) -> None:
            file.write(as_json(result) + "\n")
            file.flush()
            if result.outcome is Outcome.SURVIVED:
                click.echo(f"ALIVE after {result.tried} tests: {result.name}", err=True)

        judging = Judging(
            mutants,
            finished,
            reach=reach,
            jobs=jobs,
            budget_s=budget_s,
            killers=killers.to_try_first(target.name, known.values()),
        )
        pytest.main(pytest_arguments(target.tests, target.keyword), plugins=[judging])


def measured(target: Target, mutants: list[Mutant]) -> Reach:
    """Which tests reach what; raises click.ClickException if one fails without a mutant.

    In a process of its own: what tests leave behind, such as a cache, would hide a mutant.
    """
    paths = sorted({mutant.path for mutant in mutants})
    reach, failed = in_a_fork(lambda: _measure(target, paths))
    if failed:
        raise click.ClickException(f"without a mutant these fail: {failed}")
    return reach


def _measure(target: Target, paths: list[str]) -> tuple[Reach, list[str]]:
    measuring = Measuring(paths)
    code = pytest.main(pytest_arguments(target.tests, target.keyword), plugins=[measuring])
    return measuring.reach(), measuring.failed or ([str(code)] if code else [])


def report(folder: Path) -> int:
    """Write the page and the killers, from all that is known; the exit code."""
    lists = explained.read()
    results: dict[str, Mapping[str, Result]] = {}
    for target in TARGETS:
        known = known_results(target, folder)
        names = [mutant.name for mutant in chosen_of(target)]
        results[target.name] = {name: known[name] for name in names if name in known}
    write_page(results, lists)
    killers.write(results)
    bad = table.complaints(results, lists)
    for line in bad:
        click.echo(line, file=sys.stderr)
    return int(bool(bad))


def write_page(
    results: Mapping[str, Mapping[str, Result]], lists: Explained, *draws: counts.Draw
) -> None:
    """Count what is there, take in results and draws, and write the page.

    What was counted before stays for a file without results.
    """
    before = counts.read()
    files: dict[str, dict[str, counts.Row]] = {}
    for target in TARGETS:
        found = results.get(target.name, {})
        rows = {}
        for path in target.paths():
            source = SourceFile(path)
            mine = [each for name, each in found.items() if name.startswith(f"{source.path}:")]
            there = sum(1 for _ in source.mutants())
            old = before.files.get(target.name, {}).get(source.path, counts.Row(0))
            new = counts.row(there, mine, lists) if mine else replace(old, there=there)
            rows[source.path] = new
        files[target.name] = rows
    made = datetime.datetime.now(datetime.UTC).date().isoformat() if results else before.made
    now = counts.Counts(made, files, (*before.draws, *draws))
    counts.write(now)
    table.write(now)
