"""The error that ends a comparison: managers that did not do the same work."""

from __future__ import annotations

from kvspec.errors import KVSpecError


class UnequalWorkError(KVSpecError):
    """Two managers gave different results, or not those the case demands, so their times mean
    nothing.

    `phase` and `case` say where, `first` and `other` name the two, `expected` and `got` are the
    first results that differ.
    """

    def __init__(
        self, phase: str, case: str, first: str, other: str, expected: object, got: object
    ) -> None:
        super().__init__(
            f"{phase}, {case}: {other} answers {got!r} where {first} has {expected!r};"
            " times of unequal work are not compared (kvspec check shows which rules are broken)"
        )
        self.phase = phase
        self.case = case
        self.first = first
        self.other = other
        self.expected = expected
        self.got = got


class PoolCostError(KVSpecError):
    """A pool could not be made or filled; `name` says whose, `problem` why."""

    def __init__(self, name: str, num_blocks: int, problem: str) -> None:
        super().__init__(f"{name}, a pool of {num_blocks} blocks: {problem}")
        self.name = name
        self.num_blocks = num_blocks
        self.problem = problem
