"""Run cells of the kill matrix and write docs/KILLS.md: `python -m tests.kills`."""

from __future__ import annotations

import sys

import click

from tests.all_mistakes import everything
from tests.kills import matrix
from tests.kills.layers import LAYERS
from tests.kills.page import PAGE, text
from tests.mistakes import in_both, mistakes, of_kvfast


@click.command()
@click.argument("names", metavar="[MISTAKE]…", nargs=-1)
@click.option(
    "--layer", "layers", multiple=True, type=click.Choice(list(LAYERS)), help="Only these."
)
@click.option("--sample", type=int, help="So many mistakes of each layer, drawn by the seed.")
@click.option("--seed", default=1, show_default=True)
@click.option("--hardest", type=int, help="So many of each layer, those that fewest others killed.")
@click.option("--jobs", default=1, show_default=True, help="Cells at a time; `nice` is yours.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="Seconds for a cell.")
@click.option("--again", is_flag=True, help="Run cells that are known and current as well.")
@click.option("--page", "only_page", is_flag=True, help="Run nothing, write the page.")
def command(
    names: tuple[str, ...],
    layers: tuple[str, ...],
    sample: int | None,
    seed: int,
    hardest: int | None,
    jobs: int,
    limit_s: float,
    again: bool,
    only_page: bool,
) -> None:
    """Show mistakes to layers of checks; keep cells whose mistake still changes the same code."""
    known = matrix.read()
    everybody = (*mistakes(), *of_kvfast(), *(of_kvref for of_kvref, _ in in_both()))
    real = {mistake.id: mistake for mistake in everybody}
    known = {key: cell for key, cell in known.items() if key[0] in real and key[1] in LAYERS}
    among = [mistake for mistake in everybody if not names or mistake.id in names]
    work = [] if only_page else matrix.chosen(among, layers or list(LAYERS), sample, seed)
    if hardest is not None:
        work = matrix.hardest(among, layers or list(LAYERS), known.values(), hardest)
    if not again:
        current = {key for key, cell in known.items() if cell.code == matrix.code_of(real[key[0]])}
        work = [(m, layer) for m, layer in work if (m.id, layer) not in current]
    for number, cell in enumerate(matrix.run(work, jobs=jobs, limit_s=limit_s), 1):
        known[cell.key] = cell
        print(f"{number}/{len(work)} {cell}", file=sys.stderr, flush=True)
        if number % 20 == 0:
            matrix.write(known.values())
    matrix.write(known.values())
    PAGE.write_text(text(everybody, known, everything()), encoding="utf-8")


if __name__ == "__main__":
    command()
