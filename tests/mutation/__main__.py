"""Drawing mutants: `python -m tests.mutation draw PART --seed 1 --number 150`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kvcheck.cli._workers import workers_for, workers_options
from tests.mutation.draw import Mutant, drawn, prepared, run, short, within
from tests.mutation.page import Draw, add, explained
from tests.mutation.parts import PARTS


@click.group()
def main() -> None:
    """Mutants of the twins and of the judge: draws, and the explained ones once more."""


kept_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Of copies and what became of their mutants, which is kept: what was cut off goes on.",
)


@contextmanager
def place_for(folder: Path | None) -> Iterator[Path]:
    """Yield this folder, or a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        yield folder or Path(temporary)


def show(mutant: Mutant) -> None:
    """Print a mutant and its change."""
    click.echo(f"{mutant.status}: {mutant.name}\n  - {mutant.old}\n  + {mutant.new}")


@main.command()
@click.argument("part", type=click.Choice(tuple(PARTS)))
@click.option("--seed", default=1, help="Of the draw.")
@click.option("--number", default=150, help="How many mutants.")
@click.option("--label", help="Keep the draw under this name and write docs/MUTATION.md.")
@click.option("--commit", default="HEAD", help="What is mutated.")
@click.option("--least", default=0.0, help="Fail if a smaller share is dead or explained.")
@kept_folder
@workers_options
def draw(  # one parameter per option
    part: str,
    seed: int,
    number: int,
    label: str | None,
    commit: str,
    least: float,
    folder: Path | None,
    jobs: int,
    cluster: str | None,
) -> None:
    """Draw mutants of a part and show them to its tests."""
    commit = short(commit)  # a branch may move while mutants run
    with place_for(folder) as place, workers_for(jobs, cluster) as workers:
        total, mutants = drawn(part, place, number, seed, commit, workers)
    others = tuple(each for each in mutants if each.status != "killed")
    found = Draw(part, label or "", seed, commit, total, len(mutants), others)
    left = [m for m in found.survivors if not any(why.fits(m) for why in explained())]
    for each in left:
        show(each)
    click.echo(
        f"{part}, seed {seed}: {len(mutants)} of {total:,} mutants, {len(found.survivors)} alive,"
        f" {len(left)} without a reason"
    )
    if label:
        add(found)
    if len(left) > (1 - least) * len(mutants):
        sys.exit(1)


@main.command()
@click.argument("part", type=click.Choice(tuple(PARTS)))
@click.argument("names", nargs=-1)
@kept_folder
@workers_options
def again(
    part: str, names: tuple[str, ...], folder: Path | None, jobs: int, cluster: str | None
) -> None:
    """Try the explained mutants of a part, or those of these names; fails if one is killed."""
    with place_for(folder) as kept, workers_for(jobs, cluster) as workers:
        place = prepared(part, kept)
        reasons = [why for why in explained() if why.part == part]
        if names:
            for each in run(place, names, workers):
                show(each)
            return
        made = within(place, {why.place for why in reasons})
        found = {why: next((m for m in made if why.fits(m)), None) for why in reasons}
        tried = run(place, [one.name for one in found.values() if one is not None], workers)
    gone = [why for why, mutant in found.items() if mutant is None]
    killed = [each for each in tried if each.status == "killed"]
    for why in gone:
        click.echo(f"no such mutant any more: {why.place}\n  - {why.old}\n  + {why.new}")
    for each in killed:
        show(each)
    click.echo(f"{part}: {len(tried)} explained mutants tried, {len(killed)} killed")
    sys.exit(bool(gone or killed))


if __name__ == "__main__":
    main()
