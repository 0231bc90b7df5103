"""How many layers a group has (KV-PLAN-6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvref.planning.pages import cdiv

LARGEST_TO_SMALLEST = (3, 2)
"""Below this ratio of layer counts (1.5) each spec gets one group, padded to the largest."""


def group_size(counts: Sequence[int]) -> int:
    """The smallest count, or the largest if that is less than 1.5 times the smallest."""
    smallest, largest = min(counts), max(counts)
    numerator, denominator = LARGEST_TO_SMALLEST
    return largest if largest * denominator < smallest * numerator else smallest


def in_turn(names: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """The layers of one spec dealt out to as few groups of at most `size` as hold them.

    Layer i goes to group i mod n, not i // size: the first layers of all groups then stand close
    together in the model, and each stage of a pipeline has some of each.
    """
    num_groups = cdiv(len(names), size)
    for index in range(num_groups):
        yield tuple(names[index::num_groups])
