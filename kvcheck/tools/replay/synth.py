"""Generated traces: `synth:chat`, `synth:agent`, `synth:rag`.

Each is a stream of the same records as a file holds. All draws use `random.Random(seed).random()`
and integer arithmetic, so a seed gives the same trace on every
Python and platform. The distributions are stated in spec/replay.md, section 3.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count
from urllib.parse import parse_qsl

from kvcheck.tools.replay.trace import NO_OUTPUTS, RUN_LENGTH_TOKENS, Spelling, TraceRecord
from kvspec.errors import InvalidArgumentError

PREFIX = "synth:"
DEFAULT_REQUESTS = 1_000
DEFAULT_SEED = 0


class Draws:
    """Random numbers of a few shapes, from one seed."""

    def __init__(self, seed: int) -> None:
        self._uniform = random.Random(seed).random

    def integer(self, low: int, high: int) -> int:
        """Draw from low … high, each equally likely."""
        return low + int(self._uniform() * (high - low + 1))

    def octave(self, low: int, octaves: int) -> int:
        """Draw one of `octaves` doublings of `low`, then an integer within it, equally likely.

        Example: octave(32, 3) is in 32 … 63, 64 … 127 or 128 … 255, a third each.
        """
        start = low << self.integer(0, octaves - 1)
        return self.integer(start, 2 * start - 1)

    def index(self, cumulative: Sequence[float]) -> int:
        """Draw index i with a weight of cumulative[i] - cumulative[i - 1]."""
        return bisect_right(cumulative, self._uniform() * cumulative[-1], hi=len(cumulative) - 1)


def zipf_weights(size: int) -> list[float]:
    """Return the cumulative weights of 1, 1/2, 1/3, …, 1/size."""
    return list(accumulate(1 / rank for rank in range(1, size + 1)))


@dataclass
class _Thread:
    """A text that grows: shared runs first, then its own."""

    hash_ids: list[int]
    length: int
    turns_left: int
    pending: int = field(default=0)

    def grow(self, tokens: int, fresh_ids: Iterator[int]) -> None:
        """Append unshared tokens, with new ids for the runs they begin."""
        self.length += tokens
        while len(self.hash_ids) * RUN_LENGTH_TOKENS < self.length:
            self.hash_ids.append(next(fresh_ids))


@dataclass(frozen=True)
class _Growing:
    """The numbers of a kind of traffic whose prompts grow turn by turn."""

    preambles_runs: tuple[int, ...]
    open_threads: int
    turns: tuple[int, int]
    input_octaves: tuple[int, int]
    output_octaves: tuple[int, int]
    mean_gap_ms: int


CHAT = _Growing(
    preambles_runs=(1, 2, 3, 4),
    open_threads=16,
    turns=(1, 8),
    input_octaves=(32, 5),
    output_octaves=(8, 5),
    mean_gap_ms=250,
)
AGENT = _Growing(
    preambles_runs=(8, 12, 16),
    open_threads=8,
    turns=(5, 40),
    input_octaves=(64, 5),
    output_octaves=(16, 4),
    mean_gap_ms=250,
)


def _growing(numbers: _Growing, lines: Iterable[int], seed: int) -> Iterator[TraceRecord]:
    """Yield turns of several threads at once; each prompt is the last one, its answer, and more."""
    draws = Draws(seed)
    fresh_ids = count()
    preambles = [[next(fresh_ids) for _ in range(runs)] for runs in numbers.preambles_runs]
    popularity = zipf_weights(len(preambles))
    threads: list[_Thread | None] = [None] * numbers.open_threads
    clock_ms = 0
    for line in lines:
        clock_ms += draws.integer(0, 2 * numbers.mean_gap_ms)
        slot = draws.integer(0, numbers.open_threads - 1)
        thread = threads[slot]
        if thread is None:
            shared = preambles[draws.index(popularity)]
            length = len(shared) * RUN_LENGTH_TOKENS
            thread = _Thread(list(shared), length, draws.integer(*numbers.turns))
        thread.grow(thread.pending + draws.octave(*numbers.input_octaves), fresh_ids)
        thread.pending = draws.octave(*numbers.output_octaves)
        yield TraceRecord(line, clock_ms, thread.length, thread.pending, tuple(thread.hash_ids))
        thread.turns_left -= 1
        threads[slot] = thread if thread.turns_left else None


def _rag(lines: Iterable[int], seed: int) -> Iterator[TraceRecord]:
    """Yield a common preamble, documents in the order in which they were drawn, and a question."""
    draws = Draws(seed)
    fresh_ids = count()
    preamble = [next(fresh_ids)]
    documents = [[next(fresh_ids) for _ in range(draws.integer(1, 6))] for _ in range(1_000)]
    popularity = zipf_weights(len(documents))
    clock_ms = 0
    for line in lines:
        clock_ms += draws.integer(0, 500)
        wanted = draws.integer(2, 5)
        chosen: list[int] = []
        while len(chosen) < wanted:
            document = draws.index(popularity)
            if document not in chosen:
                chosen.append(document)
        hash_ids = [*preamble, *(run for document in chosen for run in documents[document])]
        length = len(hash_ids) * RUN_LENGTH_TOKENS + draws.octave(16, 4)
        hash_ids.append(next(fresh_ids))
        yield TraceRecord(line, clock_ms, length, draws.octave(32, 4), tuple(hash_ids))


def generators() -> dict[str, Callable[[Iterable[int], int], Iterator[TraceRecord]]]:
    """Return the generators by name; each takes the line numbers 1, 2, … and the seed."""
    return {"chat": partial(_growing, CHAT), "agent": partial(_growing, AGENT), "rag": _rag}


class SynthTrace:
    """A generated trace, named like `synth:chat?requests=500&seed=7`; a `TraceSource`.

    `seed` is used when the name sets none. Without `requests` in the name there are 1,000, or no
    end of them when `endless` (the caller takes as many as it wants). Raises InvalidArgumentError
    for an unknown generator or option.
    """

    def __init__(self, name: str, *, seed: int | None = None, endless: bool = False) -> None:
        kind, _, query = name.removeprefix(PREFIX).partition("?")
        known = generators()
        if kind not in known:
            allowed = "one of " + ", ".join(PREFIX + each for each in known)
            raise InvalidArgumentError("trace", name, allowed)
        options: dict[str, int | None] = {"requests": None, "seed": seed}
        for option, value in parse_qsl(query, keep_blank_values=True):
            if option not in options:
                raise InvalidArgumentError("trace", name, "a generator with ?requests=N&seed=S")
            if options[option] is not None:
                raise InvalidArgumentError(option, value, "given once")
            options[option] = _natural(option, value)
        self._make = known[kind]
        self.seed = DEFAULT_SEED if options["seed"] is None else options["seed"]
        self.total = options["requests"]
        if self.total is None and not endless:
            self.total = DEFAULT_REQUESTS
        self.name = f"{PREFIX}{kind}?seed={self.seed}"
        if self.total is not None:
            self.name += f"&requests={self.total}"
        self.position = 0
        self.notes = () if kind == "rag" else (NO_OUTPUTS,)
        self.spelling: Spelling | None = None

    def __iter__(self) -> Iterator[TraceRecord]:
        lines = count(1) if self.total is None else range(1, self.total + 1)
        for record in self._make(lines, self.seed):
            self.position = record.line
            yield record


def _natural(option: str, text: str) -> int:
    """Parse the decimal number `text`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidArgumentError(option, text, "a whole number of at least 0")
    return int(text)
