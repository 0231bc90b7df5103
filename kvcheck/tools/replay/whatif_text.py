"""What-if curves as rows of text: one table for one curve, and one for several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcheck.tools.replay.names import short_names
from kvcheck.tools.replay.whatif import ENOUGH_PERCENT, Curve

HEADINGS = ("blocks", "tokens", "hit rate", "best possible", "of what an endless pool hits")
NO_ROOM = "–"
"""In place of a rate: the largest request of the trace does not fit in this pool."""
OF_NOTHING = "–"
"""In place of a part of what an endless pool hits, where that is nothing."""


def heading(found: Curve, name: str) -> str:
    """Which trace, by its name, in one line."""
    return f"{name}: {found.num_requests:,} requests, blocks of {found.block_size} tokens"


def enough_text(found: Curve) -> str:
    """The pool that is enough, in blocks and tokens."""
    blocks = found.enough_blocks
    return f"{blocks:,} blocks, {found.tokens(blocks):,} tokens"


def enough_line(found: Curve) -> str:
    """The pool that is enough, as a sentence."""
    if not found.infinite:
        return "An endless pool hits nothing: no request begins with a full block of one before."
    return f"{ENOUGH_PERCENT}% of what an endless pool hits: from {enough_text(found)}"


def rows(found: Curve) -> Iterator[tuple[str, ...]]:
    """One curve: what stands below `HEADINGS`, a row for each pool, the endless one last."""
    for point in found.points:
        share = found.share(point)
        yield (
            f"{point.num_blocks:,}",
            f"{found.tokens(point.num_blocks):,}",
            f"{point.lru:.2%}",
            f"{point.optimal:.2%}",
            OF_NOTHING if share is None else f"{share:.1%}",
        )
    of_itself = "100.0%" if found.infinite else OF_NOTHING
    yield ("endless", "", f"{found.infinite:.2%}", f"{found.infinite:.2%}", of_itself)


def names(curves: Sequence[Curve]) -> list[str]:
    """The names of the curves' traces."""
    return short_names([found.trace for found in curves])


def side_by_side(curves: Sequence[Curve]) -> Iterator[tuple[str, ...]]:
    """Several curves: tokens, then what each hits and could hit at best; and the endless pool."""
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
        f"{ENOUGH_PERCENT}% from",
        *(cell for each in curves for cell in (_enough_tokens(each), "")),
    )


def _enough_tokens(found: Curve) -> str:
    return f"{found.tokens(found.enough_blocks):,}" if found.infinite else OF_NOTHING
