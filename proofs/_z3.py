"""Shared by the proofs of this folder: quantifiers over ranges, and a count of z3's answers.

A formula is written once. Without bound its ranges become quantified variables, which is how a
statement is proved. With `values` for each range it is written out, which is how a seeded bug is
refuted: for a false statement with quantifiers z3 returns `unknown`, and
a written-out counterexample is one of the statement without bound as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import z3

Term = Any
"""An expression of z3, which declares no types."""

EFFORT = 5_000_000
"""Of the first attempt, in z3's own units, so that a busy machine changes no answer."""
ATTEMPTS = 6
"""At one question, each from another seed and with twice the effort: where numbers are multiplied,
one search may take a hundred times as long as the next. Only `unknown` from all is a failure."""


@dataclass(frozen=True)
class Range:
    """The ints with low <= x, and x < high if there is a bound; of few, `values` has every one."""

    low: Term
    high: Term | None
    values: Sequence[int] | None = None

    def has(self, x: Term) -> Term:
        return self.low <= x if self.high is None else z3.And(self.low <= x, x < self.high)


def forall(
    ranges: Sequence[Range], body: Callable[..., Term], *, about: Callable[..., Term] | None = None
) -> Term:
    """State that `body` holds for all in the ranges.

    `about` is the only term by which z3 may instantiate the statement: without it, "the successor
    of at(p) is at(p + 1)" would be applied to its own at(p + 1), and so on.
    """
    if all(each.values is None for each in ranges):
        names = [z3.FreshConst(z3.IntSort(), "x") for _ in ranges]
        term = None if about is None else about(*names)
        patterns = [term] if term is not None and _is_plain(term) else []
        return z3.ForAll(names, z3.Implies(_within(ranges, names), body(*names)), patterns=patterns)
    rows = product(*(each.values or () for each in ranges))
    values = (tuple(map(z3.IntVal, row)) for row in rows)
    return z3.And(*(z3.Implies(_within(ranges, row), body(*row)) for row in values))


def _is_plain(term: Term) -> bool:
    """Check that a term has unknown functions only; z3 takes no other as a pattern."""
    return term.decl().kind() == z3.Z3_OP_UNINTERPRETED and all(map(_is_plain, term.children()))


def _within(ranges: Iterable[Range], names: Iterable[Term]) -> Term:
    return z3.And(*(each.has(name) for each, name in zip(ranges, names, strict=True)))


def cdiv(a: Term, b: Term) -> Term:
    """Divide, rounding up; z3's / on ints is floor division for a positive divisor."""
    return (a + b - 1) / b


def smaller(a: Term, b: Term) -> Term:
    return z3.If(a <= b, a, b)


def larger(a: Term, b: Term) -> Term:
    return z3.If(a >= b, a, b)


def function(name: str, arity: int = 1) -> Callable[..., Term]:
    """Return an unknown function of ints."""
    made: Callable[..., Term] = z3.Function(name, *[z3.IntSort()] * (arity + 1))
    return made


def ask(formulas: Iterable[Term]) -> str:
    """Return `sat` if the formulas can hold together, `unsat` if they can't, or `unknown`."""
    terms = tuple(formulas)
    for attempt in range(ATTEMPTS):
        solver = z3.Solver()
        solver.set(rlimit=EFFORT << attempt, random_seed=attempt)
        solver.add(*terms)
        answer = str(solver.check())
        if answer != "unknown":
            break
    return answer


@dataclass(frozen=True)
class Statement:
    """A claim under assumptions, and perhaps a claim close to it that does not hold."""

    name: str
    assumptions: tuple[Term, ...]
    claim: Term
    mistake: Term | None = None


def is_refuted(statement: Statement) -> bool:
    """Check whether the statement has a counterexample."""
    return ask([*statement.assumptions, z3.Not(statement.claim)]) == "sat"


class Ledger:
    """Asks z3, and counts the answers that are the expected ones."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.passed = 0
        self.unexpected: list[str] = []

    def prove(self, name: str, assumptions: Sequence[Term], claim: Term) -> None:
        """Record whether the claim follows from the assumptions."""
        self._record(name, "unsat", ask([*assumptions, z3.Not(claim)]))

    def possible(self, name: str, *formulas: Term) -> None:
        """Record whether the formulas can hold together, so that no proof from them is vacuous."""
        self._record(name, "sat", ask(formulas))

    def refute(self, name: str, assumptions: Sequence[Term], claim: Term) -> None:
        """Record whether the claim has a counterexample, as it should."""
        self._record(name, "sat", ask([*assumptions, z3.Not(claim)]))

    def prove_and_refute(
        self, statements: Iterable[Statement], *, always_possible: bool = True
    ) -> None:
        """Prove each claim, show that its assumptions can hold, and refute the claim next to it.

        A path through code may be one that no numbers take; its user shows which are possible.
        """
        for each in statements:
            plain = [term for term in each.assumptions if not z3.is_quantifier(term)]
            if always_possible:
                self.possible(f"{each.name}: is possible", *plain)
            self.prove(each.name, each.assumptions, each.claim)
            if each.mistake is not None:
                self.refute(f"mistake: {each.name}", plain, each.mistake)

    def agree(self, name: str, agrees: bool) -> None:
        """Record a fact established without z3."""
        self._record(name, "True", str(agrees))

    def finish(self) -> int:
        """Print the count; return 0 if every answer was the expected one."""
        for line in self.unexpected:
            print(line)
        print(f"{self.title}: {self.passed} passed, {len(self.unexpected)} failed")
        return 1 if self.unexpected else 0

    def _record(self, name: str, expected: str, answer: str) -> None:
        if answer == expected:
            self.passed += 1
        else:
            self.unexpected.append(f"{name}: {answer}, expected {expected}")
