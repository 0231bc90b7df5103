"""Drawing mutants: `python -m tests.mutation PART --seed 1 --number 150`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.mutation.draw import PARTS, drawn
from tests.mutation.page import Draw, add, explained
from tests.source import ROOT


@click.command()
@click.argument("part", type=click.Choice(tuple(PARTS)))
@click.option("--seed", default=1, help="Of the draw.")
@click.option("--number", default=150, help="How many mutants.")
@click.option("--label", help="Keep the draw under this name and write docs/MUTATION.md.")
@click.option("--least", default=0.0, help="Fail if a smaller share is dead or explained.")
@click.option("--jobs", default=1, help="Mutants at a time.")
def main(part: str, seed: int, number: int, label: str | None, least: float, jobs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        total, mutants = drawn(part, Path(folder), number, seed, jobs)
    others = tuple(each for each in mutants if each.status != "killed")
    found = Draw(part, label or "", seed, "", total, len(mutants), others)
    left = [m for m in found.survivors if not any(why.fits(m) for why in explained())]
    for each in left:
        click.echo(f"{each.status}: {each.name}\n  - {each.old}\n  + {each.new}")
    click.echo(
        f"{part}, seed {seed}: {len(mutants)} of {total:,} mutants, {len(found.survivors)} alive,"
        f" {len(left)} without a reason"
    )
    if label:
        commit = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
        add(found, subprocess.check_output(commit, text=True).strip())
    sys.exit(len(left) > (1 - least) * len(mutants))


if __name__ == "__main__":
    main()
