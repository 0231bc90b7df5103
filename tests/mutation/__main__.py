"""Mutants made by mutmut, against the tests: `python -m tests.mutation [TARGET…]`.

The whole takes hours and writes docs/MUTATION.md; `--sample 30` takes less than a minute.
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
@click.option("--seed", default=sampling.SEED, show_default=True, help="Of the sample.")
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
    if sample is not None:
        lists, known = explained.read(), killers.read()
        sys.exit(sampling.run(chosen, sample, seed, jobs=jobs, lists=lists, known=known))
    for target in chosen:
        whole.run(target, results, jobs=jobs, budget_s=budget, again=again)
    sys.exit(whole.report(results))


if __name__ == "__main__":
    command()
