"""A trace by its name: a file, standard input, the shipped demo, or a generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable

from kvcheck.tools.replay import synth
from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.formats.choice import FORMATS
from kvcheck.tools.replay.formats.text import tokenizer_of
from kvcheck.tools.replay.trace import TraceSource
from kvspec.errors import InvalidArgumentError

DEMO = "demo"
"""The shipped trace; a file of that name is called `./demo`."""


SAMPLE = "sample:"
"""Before the name of a format: a small trace in that form, made up for this project."""


@contextmanager
def open_trace(
    name: str,
    *,
    ordered: bool = False,
    seed: int | None = None,
    endless: bool = False,
    form: str | None = None,
    tokenizer: str | None = None,
    run_length: int | None = None,
) -> Iterator[TraceSource]:
    """Open the trace called `name` for the duration of the `with` block.

    `ordered`: timestamps of a file must not go backwards. `seed`, `endless`: for generators, see
    `SynthTrace`. `form`: one of `FORMATS`, for a file that isn't recognised by its content.
    `tokenizer`: path of a `tokenizer.json`, for texts. `run_length`: tokens of an id, see
    `reader_of`. Raises TraceError, InvalidArgumentError.
    """
    if name.startswith(synth.PREFIX):
        yield synth.SynthTrace(name, seed=seed, endless=endless)
        return
    if seed is not None:
        raise InvalidArgumentError("seed", seed, "left out, unless the trace is generated")
    own = None if tokenizer is None else tokenizer_of(tokenizer)
    opened = partial(TraceFile, ordered=ordered, form=form, tokenizer=own, run_length=run_length)
    shipped = _shipped(name)
    if shipped is None:
        with opened(name) as trace:
            yield trace
        return
    with resources.as_file(shipped) as path, opened(str(path)) as trace:
        trace.name = name
        yield trace


def _shipped(name: str) -> Traversable | None:
    """Return the file of a shipped trace; None for other names."""
    data = resources.files("kvcheck") / "data"
    if name == DEMO:
        return data / "demo.jsonl"
    if not name.startswith(SAMPLE):
        return None
    form = name.removeprefix(SAMPLE)
    if form not in FORMATS:
        allowed = "one of " + ", ".join(SAMPLE + each for each in FORMATS)
        raise InvalidArgumentError("trace", name, allowed)
    samples = (data / "traces").iterdir()
    return next(each for each in samples if each.name.partition(".")[0] == form)
