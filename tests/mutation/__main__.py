"""Drawing mutants: `python -m tests.mutation draw PART --seed 1 --number 150`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from tests.mutation.draw import commit, drawn
from tests.mutation.page import Draw, add, write
from tests.mutation.parts import PARTS


@click.group()
def main() -> None:
    """Mutants of the twins and the judge: a draw, the page of scores, the explained ones again."""


@main.command()
@click.argument("part", type=click.Choice(tuple(PARTS)))
@click.option("--seed", default=1, help="Of the draw.")
@click.option("--number", default=150, help="How many mutants.")
@click.option("--label", default="raw", help="What the page calls the draw.")
@click.option("--folder", type=click.Path(path_type=Path), help="Of the copy, which is kept.")
def draw(part: str, seed: int, number: int, label: str, folder: Path | None) -> None:
    """Draw mutants of a part, show them to its tests and add the score to the page."""
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        total, mutants = drawn(part, folder or Path(temporary), number, seed)
    alive = tuple(each for each in mutants if each.status != "killed")
    add(Draw(part, label, seed, commit(), total, len(mutants), alive))
    write()
    print(f"{len(mutants)} mutants, {time.process_time() - begin:.0f} s")
    for each in alive:
        print(f"{each.status}: {each.name}\n  - {each.old}\n  + {each.new}")


if __name__ == "__main__":
    sys.exit(main())
