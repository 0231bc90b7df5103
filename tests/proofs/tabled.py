"""A state of running code, as the functions of which the proofs speak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import z3


def tabled(values: Sequence[int]) -> Callable[[Any], Any]:
    """A list, as it is now, as a function of an index; 0 beyond its end."""
    now = tuple(values)

    def look_up(index: Any) -> Any:
        known = z3.simplify(index)
        if z3.is_int_value(known):
            number = known.as_long()
            return z3.IntVal(now[number] if 0 <= number < len(now) else 0)
        term: Any = z3.IntVal(0)
        for number, value in enumerate(now):
            term = z3.If(index == number, value, term)
        return term

    return look_up
