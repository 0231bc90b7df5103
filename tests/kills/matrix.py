"""Run cells of the matrix, each in a process with a time limit, and keep them."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from kvcheck.mistakes import Mistake, MistakeError
from tests.kills.layers import LAYERS

FILE = Path(__file__).parent / "cells.json"
"""All cells of the last runs, as the page shows them."""
KILLED, ALIVE, LIMIT = "killed", "alive", "limit"


@dataclass(frozen=True)
class Cell:
    """A mistake shown to a layer: `killed` by which check, `alive`, or cut off at the `limit`."""

    mistake: str
    layer: str
    outcome: str
    by: str
    cpu_s: float


def read(path: Path = FILE) -> dict[tuple[str, str], Cell]:
    lines = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {
        (mistake, layer): Cell(mistake, layer, *cell)
        for mistake, layers in lines.items()
        for layer, cell in layers.items()
    }


def write(cells: Iterable[Cell], path: Path = FILE) -> None:
    rows = (
        f"{json.dumps(name)}: {json.dumps({of: astuple(cell)[2:] for of, cell in line.items()})}"
        for name, line in sorted(by_mistake(cells).items())
    )
    path.write_text('{"cells": {\n' + ",\n".join(rows) + "\n}}\n", encoding="utf-8")


def by_mistake(cells: Iterable[Cell]) -> Mapping[str, dict[str, Cell]]:
    found: dict[str, dict[str, Cell]] = {}
    for each in sorted(cells, key=lambda cell: (cell.mistake, cell.layer)):
        found.setdefault(each.mistake, {})[each.layer] = each
    return found


def run(work: Sequence[tuple[Mistake, str]], *, jobs: int, limit_s: float) -> Iterator[Cell]:
    for layer in dict.fromkeys(layer for _, layer in work):
        LAYERS[layer].prepare()  # before the processes begin, which share it
        mine = [mistake for mistake, of in work if of == layer]
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(partial(cell, layer=layer, limit_s=limit_s), mine)


def cell(mistake: Mistake, layer: str, limit_s: float) -> Cell:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(there, LAYERS[layer].find, mistake))
    process.start()
    there.close()
    sent: tuple[str | None, float] | MistakeError | None = None
    if here.poll(limit_s):
        try:
            sent = here.recv()
        except EOFError:  # it died: its mistake ended the process
            sent = ("the process ended", 0.0)
    process.kill()
    process.join()
    if sent is None:
        return Cell(mistake.id, layer, LIMIT, "", limit_s)
    if isinstance(sent, MistakeError):
        raise sent
    by, seconds = sent
    return Cell(mistake.id, layer, ALIVE if by is None else KILLED, by or "", round(seconds, 2))


def _send(there: Connection, find: Callable[[Mistake], str | None], mistake: Mistake) -> None:
    start = time.process_time()
    try:
        by = find(mistake)
    except MistakeError as error:  # its lines are no longer there: nothing was shown
        there.send(error)
    else:
        there.send((by, time.process_time() - start))
    os._exit(0)
