"""Damaged input for one reader, in a process that may take so much memory and time and no more.

    python -m tests.input.fuzz READER [--inputs N] [--seed S] [--hole HOLE]

Each input is read, or refused with a KVSpecError. Else this process ends with 1 and says which
input it was; with less than nothing to say (killed for time or memory), the input under way lies in
the folder named first. N inputs take the same bytes each time; another seed takes others.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import cbor2

from kvspec.errors import KVSpecError
from tests.input.mutate import KINDS, bomb
from tests.input.readers import READERS

MEMORY_BYTES = 3 * 2**29
INPUT_SECONDS = 20.0
"""Of this process's own time, for one input; most take a hundredth of a second."""


def _loads(data: bytes, where: object) -> Any:
    return json.loads(data)


def _cbor(body: bytes, framing: str) -> Any:
    return cbor2.loads(body)


HOLES: Mapping[str, tuple[str, str, Any]] = {
    "an error of another tree": ("record", "kvspec.files.jsonlines.parse_json", _loads),
    "no limit of lines": (
        "trace",
        "kvcheck.tools.replay.trace.split_lines",
        lambda c: [b"".join(c)],
    ),
    "no limit of layers": ("plan", "kvcheck.tools.plans.model.MOST_LAYERS", 10**12),
    "no limit of a file": ("profile", "kvspec.profile.MOST_BYTES", 10**9),
    "lists of any length": ("view", "kvspec.record_file.check_lengths", lambda *a: None),
    "raw messages": ("frames", "kvcheck.remote.server.decode", _cbor),
}
"""Planted: the reader, what is replaced, and by what."""


def inputs(name: str, number: int, seed: int) -> Any:
    reader = READERS[name]
    valid = reader.valid()
    yield from (*valid, *reader.hard)
    if reader.kind == "lines":
        yield from (bomb(b" "), bomb(b"[],"))
    for index in range(number):
        rng = random.Random(f"{name} {seed} {index}")
        data = rng.choice(valid)
        for _ in range(rng.choice((1, 1, 1, 2))):
            try:
                data = rng.choice(KINDS[reader.kind])(data, rng)
            except (ValueError, IndexError, TypeError, AttributeError, cbor2.CBORDecodeError):
                break  # the second change found nothing that it could read
        yield data


def problem(read: Callable[[Path], object], path: Path) -> str | None:
    began = time.process_time()
    try:
        read(path)
    except KVSpecError as error:
        if "\n" in str(error) or len(str(error)) > 4_000:
            return f"its error is no line: {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    taken = time.process_time() - began
    return f"it takes {taken:.0f} seconds" if taken > INPUT_SECONDS else None


def fuzz(name: str, number: int, seed: int) -> int:
    """Read them all; 1 at the first that is neither read nor refused."""
    folder = Path(tempfile.mkdtemp(prefix="kvspec-fuzz-"))
    print(folder, flush=True)
    for index, data in enumerate(inputs(name, number, seed)):
        path = folder / "input"
        path.write_bytes(data)
        found = problem(READERS[name].read, path)
        if found is not None:
            path.write_bytes(data)
            print(f"{name}, input {index} of seed {seed}: {found}")
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hole", choices=HOLES)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = 120 + given.inputs // 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    if given.hole is None:
        return fuzz(given.reader, given.inputs, given.seed)
    _, target, replacement = HOLES[given.hole]
    with mock.patch(target, replacement):
        return fuzz(given.reader, given.inputs, given.seed)


if __name__ == "__main__":
    sys.exit(main())
