"""Mutants made by mutmut, against the tests: `python -m tests.mutation [TARGET…]`.

The whole takes hours and writes docs/MUTATION.md; `--sample 30` takes less than a minute. `--fresh`
and `--page` write that page, too, the other counts on it as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tests.mutation import explained, killers, sampling, whole
from tests.mutation.targets import ROOT, TARGETS, named

RESULTS = ROOT / "build" / "mutation"


@click.command()
@click.argument("targets", nargs=-1, type=click.Choice([target.name for target in TARGETS]))
@click.option("--sample", type=int, help="So many mutants of all targets; writes nothing.")
@click.option("--fresh", type=int, help="So many of one target, however it ends up: on the page.")
@click.option("--listed", is_flag=True, help="Those that explained.toml names; writes nothing.")
@click.option("--page", is_flag=True, help="Count the mutants that there are; try none.")
@click.option("--seed", default=sampling.SEED, show_default=True, help="Of a draw.")
@click.option("--jobs", default=2, show_default=True, help="Processes at a time.")
@click.option("--budget", default=10.0, show_default=True, help="Seconds of tests per mutant.")
@click.option("--again", is_flag=True, help="Try those that lived once more; keep the dead.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=RESULTS,
    help="Folder of what is known; a run goes on from there.",
)
def command(
    targets: Sequence[str],
    sample: int | None,
    fresh: int | None,
    listed: bool,
    page: bool,
    seed: int,
    jobs: int,
    budget: float,
    again: bool,
    results: Path,
) -> None:
    """Change the code, one small thing at a time, and see whether a test notices.

    Exit code 1: a mutant lives that is on neither list of tests/mutation/explained.toml, or a score
    is too low.
    """
    chosen = named(targets)
    lists, known = explained.read(), killers.read()
    if sample is not None:
        sys.exit(sampling.run(chosen, sample, seed, jobs=jobs, lists=lists, known=known))
    if listed:
        sys.exit(sampling.listed_that_die(chosen, jobs=jobs, lists=lists, known=known))
    if page:
        whole.write_page({}, lists)
        return
    if fresh is not None:
        draws = [sampling.fresh(each, fresh, seed, jobs=jobs, known=known) for each in chosen]
        whole.write_page({}, lists, *draws)
        return
    for target in chosen:
        whole.run(target, results, jobs=jobs, budget_s=budget, again=again)
    sys.exit(whole.report(results))


if __name__ == "__main__":
    command()
