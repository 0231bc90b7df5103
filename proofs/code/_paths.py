"""Code run on unknown ints along every path that it may take.

`Number` of `_symbolic` demands that the assumptions decide a branch; `Unknown` takes both, one
run each, and `ways` yields every run with the conditions under which it is taken. No numbers may
take a path at all, so the proofs show that their cases are possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import z3

from proofs._z3 import Term, larger, smaller

T = TypeVar("T")


@dataclass
class Way:
    """One run: what it decided so far, and which way it takes at the next branches."""

    to_take: tuple[bool, ...] = ()
    taken: list[bool] = field(default_factory=list)
    conditions: list[Term] = field(default_factory=list)
    decided: dict[int, tuple[bool, Term]] = field(default_factory=dict)

    def decide(self, condition: Term) -> bool:
        """Decide the condition for this run: by what is known, else true first."""
        simple = z3.simplify(condition) if z3.is_expr(condition) else z3.BoolVal(condition)
        if z3.is_true(simple) or z3.is_false(simple):
            return bool(z3.is_true(simple))
        if simple.get_id() in self.decided:
            return self.decided[simple.get_id()][0]
        at = len(self.taken)
        holds = self.to_take[at] if at < len(self.to_take) else True
        self.taken.append(holds)
        self.conditions.append(condition if holds else z3.Not(condition))
        self.decided[simple.get_id()] = (holds, simple)  # its id lives as long as it does
        return holds

    def assume(self, condition: Term) -> None:
        """Decide the condition beforehand: no run has its opposite."""
        simple = z3.simplify(condition)
        self.decided[simple.get_id()] = (True, simple)

    def number(self, term: Term) -> Unknown:
        """Return an unknown int of this run."""
        return Unknown(term, self)


def ways(run: Callable[[Way], T]) -> Iterator[tuple[Way, T]]:
    """Run the code once for each path, and yield its results."""
    to_take: list[bool] = []
    while True:
        way = Way(tuple(to_take))
        yield way, run(way)
        to_take = list(way.taken)
        while to_take and not to_take[-1]:
            to_take.pop()
        if not to_take:
            return
        to_take[-1] = False


def merged(run: Callable[[Way], object]) -> Term:
    """Return the int or bool that the code returns, as one term over all paths."""
    every = [(way.conditions, term_of(answer)) for way, answer in ways(run)]
    term = every[-1][1]
    for conditions, answer in every[-2::-1]:
        term = z3.If(z3.And(*conditions), answer, term)
    return term


class Unknown:
    """An int of which a run knows only its own decisions; z3's // and % are those of Python for
    positive divisors, and no other may occur.
    """

    def __init__(self, term: Term, way: Way) -> None:
        self.term = term
        self.way = way

    def _number(self, term: Term) -> Unknown:
        return Unknown(term, self.way)

    def __add__(self, other: Unknown | int) -> Unknown:
        return self._number(self.term + term_of(other))

    def __sub__(self, other: Unknown | int) -> Unknown:
        return self._number(self.term - term_of(other))

    def __mul__(self, other: Unknown | int) -> Unknown:
        return self._number(self.term * term_of(other))

    def __floordiv__(self, other: Unknown | int) -> Unknown:
        return self._number(self.term / term_of(other))

    def __mod__(self, other: Unknown | int) -> Unknown:
        return self._number(self.term % term_of(other))

    def __rfloordiv__(self, other: int) -> Unknown:
        return self._number(z3.IntVal(other) / self.term)

    def __rmod__(self, other: int) -> Unknown:
        return self._number(z3.IntVal(other) % self.term)

    def __neg__(self) -> Unknown:
        return self._number(-self.term)

    def __radd__(self, other: int) -> Unknown:
        return self._number(other + self.term)

    def __rsub__(self, other: int) -> Unknown:
        return self._number(other - self.term)

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, list):
            return Repeated(self.term)
        return self._number(other * self.term)

    def __eq__(self, other: object) -> bool:
        return self.way.decide(self.term == term_of(other))

    def __hash__(self) -> int:
        return hash(self.term)

    def __lt__(self, other: Unknown | int) -> bool:
        return self.way.decide(self.term < term_of(other))

    def __le__(self, other: Unknown | int) -> bool:
        return self.way.decide(self.term <= term_of(other))

    def __gt__(self, other: Unknown | int) -> bool:
        return self.way.decide(self.term > term_of(other))

    def __ge__(self, other: Unknown | int) -> bool:
        return self.way.decide(self.term >= term_of(other))

    def __bool__(self) -> bool:
        return self.way.decide(self.term != 0)


@dataclass(frozen=True)
class Repeated:
    """A list of one entry, an unknown number of times; of a negative one it is empty."""

    times: Term


def term_of(number: object) -> Term:
    """Return the term of an unknown int; return an int unchanged."""
    return number.term if isinstance(number, Unknown) else number


def merged_each(run: Callable[[Way], Mapping[str, object]]) -> dict[str, Term]:
    """Return the value noted under each name, as one term over all paths."""
    every = [(way.conditions, noted) for way, noted in ways(run)]
    terms = {name: z3.IntVal(0) + term_of(value) for name, value in every[-1][1].items()}
    for conditions, noted in every[-2::-1]:
        here = z3.And(*conditions)
        terms = {name: z3.If(here, term_of(noted[name]), term) for name, term in terms.items()}
    return terms


def smallest(first: object, *others: object) -> object:
    """Return the `min` of numbers, some of them unknown, without a branch."""
    return _picked(smaller, first, others)


def largest(first: object, *others: object) -> object:
    """Return their `max` without a branch."""
    return _picked(larger, first, others)


def _picked(pick: Callable[[Term, Term], Term], first: object, others: Sequence[object]) -> object:
    way = next((each.way for each in (first, *others) if isinstance(each, Unknown)), Way())
    term = z3.IntVal(0) + term_of(first)
    for other in others:
        term = pick(term, z3.IntVal(0) + term_of(other))
    return way.number(term)


@contextmanager
def picking_in_one_way(*modules: ModuleType) -> Iterator[None]:
    """Keep `min` and `max` of these modules from branching, while the context lasts."""
    with ExitStack() as stack:
        for module in modules:
            for name, pick in (("min", smallest), ("max", largest)):
                stack.enter_context(patch.object(module, name, pick, create=True))
        yield
