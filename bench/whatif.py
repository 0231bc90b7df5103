"""`python -m bench.whatif TRACE`: a curve over many sizes of the pool, beside one size alone.

    python -m bench.whatif TRACE --into bench/RESULTS.md

Each round finds the hits of one size, of all of them in one pass, and the best possible of all of
them, which takes a pass for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from time import process_time_ns

from bench.tables import options, put_run, spread
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select
from kvcheck.tools.replay.units import Units, units_of
from kvcheck.tools.replay.whatif import look_up, lru_hits, optimal_hits, sizes_between

NUM_SIZES = 20


def hits(units: Units, sizes: Sequence[int]) -> list[int]:
    """Count the blocks hit at each size: one pass over the trace, and a sum for each size."""
    looked_up = look_up(units)
    return [lru_hits(looked_up, num_blocks) for num_blocks in sizes]


def best(units: Units, sizes: Sequence[int]) -> list[int]:
    """Count the most blocks that could be hit at each size."""
    return [optimal_hits(units, num_blocks) for num_blocks in sizes]


def measure(units: Units, sizes: Sequence[int], num_rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of each, round by round, in random order."""
    middle = sizes[len(sizes) // 2]
    acts: dict[str, Callable[[], list[int]]] = {
        "one size": partial(hits, units, [middle]),
        "all sizes": partial(hits, units, sizes),
        "best possible, all sizes": partial(best, units, sizes),
    }
    found: dict[str, list[float]] = {name: [] for name in acts}
    answers: dict[str, list[int]] = {}
    rng = Random(0)
    for _ in range(num_rounds):
        for name in rng.sample([*acts], k=len(acts)):
            began = process_time_ns()
            answers[name] = acts[name]()
            found[name].append((process_time_ns() - began) / 1e9)
    if answers["one size"] != [answers["all sizes"][len(sizes) // 2]]:
        raise AssertionError(f"one size hits {answers['one size']}, in the curve something else")
    if any(map(int.__gt__, answers["all sizes"], answers["best possible, all sizes"])):
        raise AssertionError("more is hit than is possible")
    return found


def rows(found: dict[str, list[float]]) -> Iterator[str]:
    """Yield the table, line by line."""
    yield "| | s | times one size |"
    yield "|---|---:|---:|"
    for name, seconds in found.items():
        ratio = [each / one for each, one in zip(seconds, found["one size"], strict=True)]
        yield f"| {name} | {spread(seconds)} | {spread(ratio)} |"


def main() -> None:
    """See the top of this file."""
    parser = options(__doc__, "whatif", 9)
    parser.add_argument("trace", metavar="TRACE")
    given = parser.parse_args()
    with open_trace(given.trace) as source:
        units = units_of(select(source), None)
    (sizes,) = sizes_between([units], NUM_SIZES)
    name = Path(given.trace).name
    facts = (
        f"{len(units.requests):,} requests, blocks of {units.block_size} tokens, {len(sizes)} sizes"
        f" from {sizes[0]:,} to {sizes[-1]:,} blocks. Processor time, median of {given.rounds}"
        " rounds (quartiles); reading the trace is not in it."
    )
    command = f"python -m bench.whatif {name} --rounds {given.rounds}"
    measured = rows(measure(units, sizes, given.rounds))
    put_run(command, facts, measured, "whatif", given.into)


if __name__ == "__main__":
    main()
