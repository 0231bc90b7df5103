"""Run cells of the kill matrix and write docs/KILLS.md: `python -m tests.kills`."""

from __future__ import annotations

import sys

import click

from tests.kills import matrix
from tests.kills.layers import LAYERS
from tests.kills.page import PAGE, everybody, text


@click.command()
@click.argument("names", metavar="[MISTAKE]…", nargs=-1)
@click.option(
    "--layer", "layers", multiple=True, type=click.Choice(list(LAYERS)), help="Only these."
)
@click.option("--jobs", default=1, show_default=True, help="Cells at a time; `nice` is yours.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="Seconds for a cell.")
@click.option("--again", is_flag=True, help="Run cells that are known as well.")
def command(
    names: tuple[str, ...], layers: tuple[str, ...], jobs: int, limit_s: float, again: bool
) -> None:
    """Show mistakes to the directed suite, or to these layers; keep what comes of it."""
    real = {mistake.id: mistake for mistake in everybody()}
    known = {key: cell for key, cell in matrix.read().items() if key[0] in real}
    work = [
        (mistake, layer)
        for layer in layers or ["directed"]
        for mistake in real.values()
        if LAYERS[layer].is_about(mistake) and (not names or mistake.id in names)
        if again or (mistake.id, layer) not in known
    ]
    for number, cell in enumerate(matrix.run(work, jobs=jobs, limit_s=limit_s), 1):
        known[cell.mistake, cell.layer] = cell
        print(f"{number}/{len(work)} {cell}", file=sys.stderr, flush=True)
        if number % 20 == 0:
            matrix.write(known.values())
    matrix.write(known.values())
    PAGE.write_text(text(everybody(), known), encoding="utf-8")


if __name__ == "__main__":
    command()
