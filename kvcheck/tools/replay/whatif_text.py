"""Format what-if curves as text: a table for one curve, or several curves side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvcheck.tools.plans.document import GIB
from kvcheck.tools.replay.trace import short_names
from kvcheck.tools.replay.whatif import ENOUGH_PERCENT, Curve

NO_ROOM = "–"
"""Shown instead of a rate if the largest request of the trace does not fit in the pool."""
OF_NOTHING = "–"
"""Shown instead of the share of an endless pool's hits if there are none."""


def heading(found: Curve, name: str) -> str:
    """Return a line with the name of the trace, its requests and the block size."""
    return f"{name}: {found.num_requests:,} requests, blocks of {found.block_size} tokens"


def enough_text(found: Curve) -> str:
    """Return the size of the smallest pool that is enough, in blocks and tokens."""
    blocks = found.enough_blocks
    return f"{blocks:,} blocks ({found.tokens(blocks):,} tokens)"


@dataclass(frozen=True)
class Memory:
    """The memory that a model takes: the bytes of a token on each worker."""

    name: str
    bytes_per_token: int

    @property
    def line(self) -> str:
        """The model and its bytes, in words."""
        return f"{self.name}: {self.bytes_per_token:,} bytes a token on each worker"

    def gib(self, num_tokens: int) -> str:
        """Return the GiB that so many tokens take."""
        return f"{num_tokens * self.bytes_per_token / GIB:,.2f}"


def with_memory(
    names: Sequence[str], lines: Iterable[Sequence[str]], memory: Memory | None
) -> tuple[Sequence[str], Iterable[Sequence[str]]]:
    """Return a table with a column behind that of the tokens: the GiB that they take."""
    if memory is None:
        return names, lines
    place = names.index("tokens") + 1

    def gib(cell: str) -> str:
        number = cell.replace(",", "")
        return memory.gib(int(number)) if number.isdecimal() else ""

    added = ([*line[:place], gib(line[place - 1]), *line[place:]] for line in lines)
    return [*names[:place], "GiB", *names[place:]], added


def enough_line(found: Curve, memory: Memory | None = None) -> str:
    """Return a sentence with the size of the smallest pool that is enough, and its memory."""
    if not found.infinite:
        return "Even an endless pool hits nothing: no request repeats a full block of earlier ones."
    gib = "" if memory is None else f", {memory.gib(found.tokens(found.enough_blocks))} GiB,"
    least = "; a smaller one cannot hold the largest request" if found.is_least else ""
    return (
        f"{enough_text(found)}{gib} give {ENOUGH_PERCENT} % of the hits of an endless pool{least}"
    )


def headings(found: Curve) -> tuple[str, ...]:
    """Return the names of the columns that `rows` yields."""
    if found.costs:
        names = (name.replace(":", " ") for name in found.costs)  # where a heading may wrap
        return ("blocks", "tokens", "lru", *names, "best")
    return ("blocks", "tokens", "hit rate", "best possible", "of an endless pool's hits")


@dataclass(frozen=True)
class Speed:
    """How fast a host tier's tokens are loaded, and prompts computed; None if not known."""

    load_gib_per_s: float
    prefill_tokens_per_s: float | None = None

    def load_s(self, num_tokens: int, memory: Memory) -> float:
        return num_tokens * memory.bytes_per_token / GIB / self.load_gib_per_s

    def compute_s(self, num_tokens: int) -> float | None:
        rate = self.prefill_tokens_per_s
        return None if rate is None else num_tokens / rate


def with_host(
    names: Sequence[str], found: Curve, memory: Memory | None, speed: Speed
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the table of a curve with a host tier: hit rates, and the time of its loads."""
    added = ["with host", "loaded"]
    if memory is not None:
        added += ["load s"] + ["recompute s"] * (speed.prefill_tokens_per_s is not None)
    lines: list[Sequence[str]] = []
    for point, line in zip(found.points, rows(found), strict=False):
        loaded = point.num_loaded_tokens
        cells = [f"{point.lru + loaded / found.num_tokens:.2%}", f"{loaded:,}"]
        if memory is not None:
            cells.append(f"{speed.load_s(loaded, memory):,.1f}")
        if len(added) > len(cells):
            cells.append(f"{speed.compute_s(loaded):,.1f}")
        lines.append((*line[:3], *cells))
    return (*names[:3], *added), lines


def costs_line(found: Curve) -> str:
    """Return a sentence with the time of each policy's bookkeeping."""
    costs = ", ".join(f"{name} {cost:.1f}" for name, cost in found.costs.items())
    return f"Time of each policy's bookkeeping a request, as measured here, over LRU's: {costs}"


def rows(found: Curve) -> Iterator[tuple[str, ...]]:
    """Yield the rows below `headings` for one curve: each pool, then the endless one."""
    for point in found.points:
        rates = (point.lru, *point.policies.values(), point.optimal)
        share = found.share(point)
        yield (
            *(f"{size:,}" for size in (point.num_blocks, found.tokens(point.num_blocks))),
            *(f"{rate:.2%}" for rate in rates),
            *([] if found.costs else [OF_NOTHING if share is None else f"{share:.1%}"]),
        )
    most = f"{found.infinite:.2%}"
    of_itself = [] if found.costs else ["100.0%" if found.infinite else OF_NOTHING]
    yield ("endless", "", most, *[""] * len(found.costs), most, *of_itself)


def names(curves: Sequence[Curve]) -> list[str]:
    """Return short distinct names of the curves' traces."""
    return short_names([found.trace for found in curves])


def side_by_side(curves: Sequence[Curve]) -> Iterator[tuple[str, ...]]:
    """Yield rows for several curves: the tokens, then each curve's hit rate and best possible rate.

    The last two rows are the endless pool, and the tokens that are enough for each curve.
    """
    points = [{found.tokens(each.num_blocks): each for each in found.points} for found in curves]
    for tokens in sorted(set().union(*points)):
        cells = [f"{tokens:,}"]
        for known in points:
            point = known.get(tokens)
            cells += (
                (NO_ROOM, "") if point is None else (f"{point.lru:.2%}", f"{point.optimal:.2%}")
            )
        yield tuple(cells)
    yield ("endless", *(f"{each.infinite:.2%}" for each in curves for _ in range(2)))
    yield (
        f"for {ENOUGH_PERCENT} %",
        *(cell for each in curves for cell in (_enough_tokens(each), "")),
    )


def _enough_tokens(found: Curve) -> str:
    return f"{found.tokens(found.enough_blocks):,}" if found.infinite else OF_NOTHING
