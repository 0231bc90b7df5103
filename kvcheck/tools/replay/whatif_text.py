"""Format what-if curves as text: a table for one curve, or several curves side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kvcheck.tools.plans.document import GIB
from kvcheck.tools.replay.trace import short_names
from kvcheck.tools.replay.whatif import ENOUGH_PERCENT, Curve

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The names of the columns, and the rows."""

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


def enough_line(found: Curve, memory: Memory | None = None) -> str:
    """Return a sentence with the size of the smallest pool that is enough, and its memory."""
    if not found.infinite:
        return "Even an endless pool hits nothing: no request repeats a full block of earlier ones."
    gib = "" if memory is None else f", {memory.gib(found.tokens(found.enough_blocks))} GiB,"
    least = "; a smaller one cannot hold the largest request" if found.is_least else ""
    return (
        f"{enough_text(found)}{gib} give {ENOUGH_PERCENT} % of the hits of an endless pool{least}"
    )


@dataclass(frozen=True)
class Speed:
    """How fast a host tier's tokens are loaded, and prompts computed; None if not known."""

    load_gib_per_s: float
    prefill_tokens_per_s: float | None = None

    def columns(self, loaded: Sequence[int], memory: Memory | None) -> dict[str, list[str]]:
        """Return how long it takes to load so many tokens, and to compute them, if known."""
        if memory is None:
            return {}
        rates = {"load s": self.load_gib_per_s * GIB / memory.bytes_per_token}
        if self.prefill_tokens_per_s is not None:
            rates["recompute s"] = self.prefill_tokens_per_s
        return {name: [f"{num / rate:,.1f}" for num in loaded] for name, rate in rates.items()}


def costs_line(found: Curve) -> str:
    """Return a sentence with the time of each policy's bookkeeping."""
    costs = ", ".join(f"{name} {cost:.1f}" for name, cost in found.costs.items())
    return f"Time of each policy's bookkeeping a request, as measured here, over LRU's: {costs}"


def names(curves: Sequence[Curve]) -> list[str]:
    """Return short distinct names of the curves' traces."""
    return short_names([found.trace for found in curves])


def table(found: Curve, memory: Memory | None = None, speed: Speed | None = None) -> Table:
    """Return the table of a curve, its last row the endless pool; `speed`: of its host tier."""
    points, most = found.points, f"{found.infinite:.2%}"
    tokens = [found.tokens(each.num_blocks) for each in points]
    lru = [*(f"{each.lru:.2%}" for each in points), most]
    best = [*(f"{each.optimal:.2%}" for each in points), most]
    columns = {"blocks": [*(f"{each.num_blocks:,}" for each in points), "endless"]}
    columns |= _tokens(tokens, memory)
    if speed is not None:
        del columns["blocks"][-1]  # it needs no host
        loaded = [each.num_loaded_tokens for each in points]
        rates = [
            each.lru + num / found.num_tokens for each, num in zip(points, loaded, strict=True)
        ]
        columns["hit rate"], columns["with host"] = lru[:-1], [f"{rate:.2%}" for rate in rates]
        columns |= {"loaded": [f"{num:,}" for num in loaded]} | speed.columns(loaded, memory)
    elif found.costs:
        columns["lru"] = lru
        for name in found.costs:  # with a space, a heading may wrap
            columns[name.replace(":", " ")] = [f"{each.policies[name]:.2%}" for each in points]
        columns["best"] = best
    else:
        shares = [*map(found.share, points), 1.0 if found.infinite else None]
        shown = [OF_NOTHING if share is None else f"{share:.1%}" for share in shares]
        columns |= {"hit rate": lru, "best possible": best, "of an endless pool's hits": shown}
    return _rows(columns)


def side_by_side(curves: Sequence[Curve], memory: Memory | None = None) -> Table:
    """Return a table of several curves, by number: the hit rate and the best for these tokens.

    The last two rows are the endless pool, and the tokens that are enough for each curve.
    """
    points = [{found.tokens(each.num_blocks): each for each in found.points} for found in curves]
    sizes = sorted(set().union(*points))
    columns = _tokens(sizes, memory)
    columns["tokens"] += ["endless", f"for {ENOUGH_PERCENT} %"]
    for number, (found, known) in enumerate(zip(curves, points, strict=True), 1):
        most = f"{found.infinite:.2%}"
        enough = f"{found.tokens(found.enough_blocks):,}" if found.infinite else OF_NOTHING
        here = [known.get(size) for size in sizes]
        rates = [NO_ROOM if each is None else f"{each.lru:.2%}" for each in here]
        columns[f"{number}: hit rate"] = [*rates, most, enough]
        best = ["" if each is None else f"{each.optimal:.2%}" for each in here]
        columns[f"{number}: best"] = [*best, most]
    return _rows(columns)


def _tokens(sizes: Sequence[int], memory: Memory | None) -> dict[str, list[str]]:
    gib = {} if memory is None else {"GiB": [memory.gib(size) for size in sizes]}
    return {"tokens": [f"{size:,}" for size in sizes], **gib}


def _rows(columns: Mapping[str, Sequence[str]]) -> Table:
    return list(columns), list(zip_longest(*columns.values(), fillvalue=""))
