"""Show every mutant to the suite and write docs/MUTANTS.md: `python -m tests.mutants [NAME…]`."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from kvcheck.play.verdicts import Level
from tests.mutants.make import Mutant
from tests.mutants.registry import EQUIVALENT, MUTANTS, find
from tests.mutants.search import Effort, Kill, Result, asks, directed_checks, judge, random_tier
from tests.mutants.table import text

PAGE = Path(__file__).parents[2] / "docs" / "MUTANTS.md"


@click.command()
@click.argument("names", metavar="[NAME]…", nargs=-1)
@click.option("--jobs", default=2, show_default=True, help="Processes, all of low priority.")
@click.option("--beside", default=Effort.beside, show_default=True, help="Random programs.")
@click.option("--last", default=Effort.last, show_default=True, help="… if nothing else kills.")
@click.option("--every", default=Effort.every, show_default=True, help="Sample one in so many.")
@click.option("--every-check", is_flag=True, help="Every directed check on every mutant (long).")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the results too.")
@click.option(
    "--with",
    "known_path",
    type=click.Path(path_type=Path, exists=True),
    help="Results of an earlier --json, for the mutants that are not named.",
)
def command(
    names: tuple[str, ...],
    jobs: int,
    beside: int,
    last: int,
    every: int,
    every_check: bool,
    json_path: Path | None,
    known_path: Path | None,
) -> None:
    """Show mutants to the conformance suite; if all were, write the page."""
    effort = Effort(beside, every, last, every_check)
    chosen = [find(name) for name in names] if names else list(MUTANTS)
    for plans in (False, True):
        for number in (effort.beside, effort.last):
            random_tier(number, plans=plans)  # drawn once, for all processes
    results: dict[str, Result] = {}
    for result in judged(chosen, effort, jobs, all_sampled=bool(names)):
        results[result.name] = result
        shown = f"{result.level}, {result.kill.by}" if result.kill else "ALIVE"
        print(f"{len(results)}/{len(chosen)} {result.name}: {shown}", file=sys.stderr, flush=True)
    if known_path is not None:
        results = {**read(known_path), **results}
    if json_path is not None:
        rows = [asdict(result) for result in results.values()]
        json_path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if all(mutant.name in results for mutant in MUTANTS):
        page = text(MUTANTS, results, EQUIVALENT, witnesses(results, jobs), effort)
        PAGE.write_text(page, encoding="utf-8")


def read(path: Path) -> dict[str, Result]:
    """What `--json` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        row["name"]: Result(
            **{
                **row,
                "kill": Kill(**row["kill"]) if row["kill"] else None,
                "directed": tuple(row["directed"]),
            }
        )
        for row in rows
    }


def judged(
    mutants: Sequence[Mutant], effort: Effort, jobs: int, *, all_sampled: bool
) -> Iterator[Result]:
    """The results, in the order in which they come."""
    work = [
        (mutant.name, effort, all_sampled or number % effort.every == 0)
        for number, mutant in enumerate(mutants)
    ]
    with multiprocessing.get_context("fork").Pool(jobs, os.nice, (2,)) as pool:
        yield from pool.imap_unordered(_judge, work)


def _judge(work: tuple[str, Effort, bool]) -> Result:
    name, effort, sampled = work
    return judge(find(name), effort, sampled=sampled)


def witnesses(results: Mapping[str, Result], jobs: int) -> dict[str, str | None]:
    """For each directed check a mutant that it kills: from the results, else one that is sought."""
    known: dict[str, str] = {}
    for result in results.values():
        for check in result.directed:
            known.setdefault(check, result.name)
    unknown = [check.name for check in directed_checks() if check.name not in known]
    with multiprocessing.get_context("fork").Pool(jobs, os.nice, (2,)) as pool:
        sought = dict(zip(unknown, pool.imap(first_killed, unknown), strict=True))
    return {check.name: known.get(check.name) or sought[check.name] for check in directed_checks()}


def first_killed(name: str) -> str | None:
    """The first mutant that this directed check kills, those of its chapters first.

    Those of its rules are known to live.
    """
    check = next(check for check in directed_checks() if check.name == name)
    others = [mutant for mutant in MUTANTS if set(mutant.rules).isdisjoint(check.rules)]
    chapters = chapters_of(check.rules)
    for mutant in sorted(others, key=lambda mutant: chapters.isdisjoint(chapters_of(mutant.rules))):
        subject = mutant.make()
        if asks(check, subject) and check.at[Level.IDENTITY](subject) is not None:
            return mutant.name
    return None


def chapters_of(rules: Iterable[str]) -> set[str]:
    """`KV-POOL` of `KV-POOL-3`."""
    return {rule.rpartition("-")[0] for rule in rules}


if __name__ == "__main__":
    command()
