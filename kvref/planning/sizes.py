"""The number of layers in a group (KV-PLAN-6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvref.planning.pages import cdiv

LARGEST_TO_SMALLEST = (3, 2)
"""Below this ratio of layer counts (1.5) each spec gets one group, padded to the largest."""


def group_size(counts: Sequence[int]) -> int:
    """Return the smallest count, or the largest if that is less than 1.5 times the smallest."""
    smallest, largest = min(counts), max(counts)
    numerator, denominator = LARGEST_TO_SMALLEST
    return largest if largest * denominator < smallest * numerator else smallest


def in_turn(names: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Distribute the layers of one spec over the fewest groups of at most `size`.

    Layer i is put into group i mod n, not i // size: the first layers of all groups are then close
    together in the model, and each stage of a pipeline has some of each.
    """
    num_groups = cdiv(len(names), size)
    for index in range(num_groups):
        yield tuple(names[index::num_groups])
