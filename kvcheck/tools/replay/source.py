"""A trace by its name: a file, standard input, the shipped demo, or a generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

from kvcheck.tools.replay import synth
from kvcheck.tools.replay.trace import TraceFile, TraceSource
from kvspec.errors import InvalidArgumentError

DEMO = "demo"
"""The shipped trace; a file of that name is called `./demo`."""


@contextmanager
def open_trace(
    name: str, *, ordered: bool = False, seed: int | None = None, endless: bool = False
) -> Iterator[TraceSource]:
    """The trace called `name`, open until the end of the `with` block.

    `ordered`: timestamps of a file must not go backwards. `seed`, `endless`: for generators, see
    `SynthTrace`. Raises TraceError and InvalidArgumentError.
    """
    if name.startswith(synth.PREFIX):
        yield synth.SynthTrace(name, seed=seed, endless=endless)
        return
    if seed is not None:
        raise InvalidArgumentError("seed", seed, "left out, unless the trace is generated")
    if name != DEMO:
        with TraceFile(name, ordered=ordered) as trace:
            yield trace
        return
    shipped = resources.files("kvcheck") / "data" / "demo.jsonl"
    with resources.as_file(shipped) as path, TraceFile(str(path), ordered=ordered) as trace:
        trace.name = DEMO
        yield trace
