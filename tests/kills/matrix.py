"""Run cells of the matrix, each in a process with a time limit; keep those that are current."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvcheck.mistakes import Mistake, MistakeError
from kvcheck.mistakes.text import Change, definition
from tests.kills.layers import LAYERS

FILE = Path(__file__).parent / "cells.json"
"""All cells of the last runs, as the page shows them."""
KILLED, ALIVE, LIMIT = "killed", "alive", "limit"


@dataclass(frozen=True)
class Cell:
    """A mistake shown to a layer: `killed` by which check, `alive`, or cut off at the `limit`.

    `code`: `code_of` the mistake when the cell was run; empty if that is not known.
    """

    mistake: str
    layer: str
    outcome: str
    by: str
    cpu_s: float
    code: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.mistake, self.layer


def read(path: Path = FILE) -> dict[tuple[str, str], Cell]:
    """Return the earlier cells."""
    if not path.exists():
        return {}
    told = json.loads(path.read_text(encoding="utf-8"))
    return {
        (mistake, layer): Cell(mistake, layer, *cell)
        for mistake, layers in told["cells"].items()
        for layer, cell in layers.items()
    }


def write(cells: Iterable[Cell], path: Path = FILE) -> None:
    """Write one line for each mistake."""
    lines: dict[str, dict[str, list[Any]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.key):
        lines.setdefault(cell.mistake, {})[cell.layer] = list(asdict(cell).values())[2:]
    rows = (f"{json.dumps(name)}: {json.dumps(line)}" for name, line in lines.items())
    text = '{"cells": {\n' + ",\n".join(rows) + "\n}}\n"
    json.loads(text)
    path.write_text(text, encoding="utf-8")


def code_of(mistake: Mistake) -> str:
    """Return a checksum of the mistake and of the functions it changes, without their comments.

    Docstrings are comments here: they cannot change what a check finds.
    """
    changes = mistake.make.args[1]  # type: ignore[attr-defined]  # a partial of `twin`
    seen = sha256(repr(changes).encode())
    for change in changes:
        changed = _WithoutStrings().visit(_changed(change, source_of(change.module)))
        seen.update(ast.dump(changed).encode())
    return seen.hexdigest()[:12]


class _WithoutStrings(ast.NodeTransformer):
    """Removes statements that are only a string."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_string = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_string else node


@cache
def source_of(module: str) -> str:
    """Return the source of a module that is not imported."""
    spec = find_spec(module)
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""


def _changed(change: Change, source: str) -> ast.AST:
    """Return the function, or of a class or module the whole, that the change is made in."""
    return definition(source, change) if change.place else ast.parse(source)


def chosen(
    mistakes: Sequence[Mistake], layers: Sequence[str], sample: int | None, seed: int
) -> list[tuple[Mistake, str]]:
    """Return what to run; of each layer, a sample of the mistakes, drawn by the seed."""
    found = []
    for layer in layers:
        about = [m for m in mistakes if LAYERS[layer].is_about(m)]
        if sample is not None:
            about = sorted(about, key=lambda m: sha256(f"{seed} {m.id}".encode()).digest())[:sample]
        found += [(mistake, layer) for mistake in about]
    return found


def hardest(
    mistakes: Sequence[Mistake], layers: Sequence[str], cells: Iterable[Cell], number: int
) -> list[tuple[Mistake, str]]:
    """Return for each layer the mistakes killed by the smallest share of other layers."""
    known = by_mistake(cells)

    def share(mistake: Mistake, layer: str) -> tuple[float, str]:
        others = [cell for of, cell in known.get(mistake.id, {}).items() if of != layer]
        killed = sum(cell.outcome == KILLED for cell in others)
        return killed / max(len(others), 1), mistake.id

    found = []
    for layer in layers:
        about = [mistake for mistake in mistakes if LAYERS[layer].is_about(mistake)]
        about.sort(key=lambda mistake: share(mistake, layer))
        found += [(mistake, layer) for mistake in about[:number]]
    return found


def run(work: Sequence[tuple[Mistake, str]], *, jobs: int, limit_s: float) -> Iterator[Cell]:
    """Yield the cells as they finish."""
    for layer in dict.fromkeys(layer for _, layer in work):
        LAYERS[layer].prepare()  # before the processes begin, which share it
        mine = [mistake for mistake, of in work if of == layer]
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(partial(cell, layer=layer, limit_s=limit_s), mine)


def cell(mistake: Mistake, layer: str, limit_s: float) -> Cell:
    """Run one cell in a separate process."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_told, args=(there, LAYERS[layer].find, mistake))
    process.start()
    there.close()
    told: tuple[str | None, float] | MistakeError | None = None
    if here.poll(limit_s):
        try:
            told = here.recv()
        except EOFError:  # it died: its mistake ended the process
            told = ("the process ended", 0.0)
    process.kill()
    process.join()
    if told is None:
        return Cell(mistake.id, layer, LIMIT, "", limit_s, code_of(mistake))
    if isinstance(told, MistakeError):
        raise told
    by, seconds = told
    outcome = ALIVE if by is None else KILLED
    return Cell(mistake.id, layer, outcome, by or "", round(seconds, 2), code_of(mistake))


def _told(there: Connection, find: Callable[[Mistake], str | None], mistake: Mistake) -> None:
    start = time.process_time()
    try:
        by = find(mistake)
    except MistakeError as error:  # its lines are no longer there: nothing was shown
        there.send(error)
    else:
        there.send((by, time.process_time() - start))
    os._exit(0)


def by_mistake(cells: Iterable[Cell]) -> Mapping[str, dict[str, Cell]]:
    """Return each mistake's cells by layer."""
    found: dict[str, dict[str, Cell]] = {}
    for each in cells:
        found.setdefault(each.mistake, {})[each.layer] = each
    return found
