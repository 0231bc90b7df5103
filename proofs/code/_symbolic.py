"""The code of kvfast run on unknown numbers instead of ints.

`Number` is an unknown int that code can add, subtract and compare. Where code asks which way to go,
the assumptions must say; if they leave it open, that is an error. `Facts` is the memory of the
records of blocks (kvfast._core.record), a function of the block for every field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import z3

from kvfast._core import record
from kvfast._core.pool import BlockPool
from kvfast._core.upcoming import Upcoming
from proofs._z3 import Term, ask


class UndecidedError(Exception):
    """Code branches on what the assumptions leave open."""


@dataclass(frozen=True)
class Number:
    """An unknown int, under assumptions."""

    term: Term
    assumptions: tuple[Term, ...] = ()

    def __add__(self, other: Number | int) -> Number:
        return Number(self.term + value(other), self.assumptions)

    def __sub__(self, other: Number | int) -> Number:
        return Number(self.term - value(other), self.assumptions)

    def __mul__(self, other: int) -> Number:
        return Number(self.term * other, self.assumptions)

    def __radd__(self, other: int) -> Number:
        return self + other

    def __rsub__(self, other: int) -> Number:
        return Number(other - self.term, self.assumptions)

    def __rmul__(self, other: int) -> Number:
        return self * other

    def __eq__(self, other: object) -> bool:
        return self._decide(self.term == value(other))

    def __hash__(self) -> int:
        return hash(self.term)

    def __gt__(self, other: Number | int) -> bool:
        return self._decide(self.term > value(other))

    def __lt__(self, other: Number | int) -> bool:
        return self._decide(self.term < value(other))

    def __le__(self, other: Number | int) -> bool:
        return self._decide(self.term <= value(other))

    def __ge__(self, other: Number | int) -> bool:
        return self._decide(self.term >= value(other))

    def __bool__(self) -> bool:
        return self._decide(self.term != 0)

    def _decide(self, condition: Term) -> bool:
        if ask([*self.assumptions, z3.Not(condition)]) == "unsat":
            return True
        if ask([*self.assumptions, condition]) == "unsat":
            return False
        raise UndecidedError(str(condition))


def value(number: object) -> Term:
    """Return the term of a number; return an int unchanged."""
    return number.term if isinstance(number, Number) else number


def as_int(term: Term) -> int:
    """Wrap a term for code that is declared to take an int."""
    return cast(int, Number(term))


class Facts:
    """Records whose fields are unknown functions; writing to one leaves the others as they were."""

    def __init__(
        self, fields: Mapping[int, Callable[[Term], Term]], assumptions: tuple[Term, ...] = ()
    ) -> None:
        self.fields = dict(fields)
        self.assumptions = assumptions

    def __getitem__(self, index: Number | int) -> Number:
        block, field = self.place(index)
        return Number(self.fields[field](block), self.assumptions)

    def __setitem__(self, index: Number | int, number: Number | int) -> None:
        block, field = self.place(index)
        old, new = self.fields[field], value(number)
        self.fields[field] = lambda b: z3.If(b == block, new, old(b))

    def place(self, index: Number | int) -> tuple[Term, int]:
        """Split an index `INTS * block + field` into block and field."""
        if isinstance(index, int):
            block, field = divmod(index, record.INTS)
            return z3.IntVal(block), field
        term = index.term
        if not (z3.is_add(term) and z3.is_mul(term.arg(0)) and z3.is_int_value(term.arg(1))):
            raise UndecidedError(f"no field of a block: {term}")
        block, times = term.arg(0).children()  # in this order: see Number.__rmul__
        if not (z3.is_int_value(times) and times.as_long() == record.INTS):
            raise UndecidedError(f"no record of a block: {term}")
        return block, term.arg(1).as_long()


class NoGuesses(Upcoming):
    """Guesses nothing: what is fetched changes nothing."""

    def __init__(self) -> None:
        pass

    def put(self, block: int) -> None:
        """Do nothing."""

    def taken(self, block: int, step: int) -> None:
        """Do nothing."""


class SymbolicPool(BlockPool):
    """kvfast's pool on unknown memory: methods not defined here are the code itself."""

    def __init__(self, facts: Facts, num_free: Number, *, unhashed_to_front: bool = True) -> None:
        self.assumptions = facts.assumptions
        self.facts = cast("memoryview[int]", facts)
        self.num_free = cast(int, num_free)
        self.residency = None
        self.order = None  # LRU; other orders are not proved
        self.upcoming = NoGuesses()
        self.unhashed_to_front = unhashed_to_front

    def drop_keys(self, block: int) -> None:
        """Do nothing: keys are not part of the queue, and dropping them links nothing in it."""
