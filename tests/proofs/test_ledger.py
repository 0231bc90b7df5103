"""Shared by proofs with z3: answers are counted, and an undecided branch is refused."""

from __future__ import annotations

import pytest
import z3

from kvfast._core.shape import Shape
from proofs._z3 import Ledger, Range, forall, function
from proofs.code._planted import Planted, check_planted
from proofs.code._symbolic import Number, UndecidedError


def test_a_false_statement_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Prove and refute the wrong way round, and claim an impossible case."""
    x = z3.Int("x")
    ledger = Ledger("twins")
    ledger.prove("false", [x > 0], x > 1)
    ledger.refute("true", [x > 0], x >= 1)
    ledger.possible("empty", x > 0, x < 0)
    assert ledger.finish() == 1
    assert capsys.readouterr().out.splitlines() == [
        "false: sat, expected unsat",
        "true: unsat, expected sat",
        "empty: unsat, expected sat",
        "twins: 0 passed, 3 failed",
    ]


def test_a_range_written_out_says_the_same_as_one_with_a_quantifier() -> None:
    f, n = function("f"), z3.Int("n")
    for values in (None, range(4)):
        numbers = Range(0, n, values)
        known = [n == 3, forall([numbers], lambda i: f(i) == i)]
        ledger = Ledger("ranges")
        ledger.prove("inside", known, f(2) == 2)
        ledger.prove("sum", known, f(1) + f(2) == 3)
        if values is not None:
            ledger.refute("outside", known, f(3) == 3)
        assert ledger.finish() == 0


def test_code_that_branches_on_what_is_open_is_refused() -> None:
    x = z3.Int("x")
    assert Number(x, (x > 2,)) > 1
    assert Number(x, (x > 2,)) != 0
    with pytest.raises(UndecidedError):
        bool(Number(x, (x > 2,)) == 3)


def test_a_mistake_whose_line_is_gone_fails(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger("gone")
    gone = Planted("KV-SW-2", (Shape, "run_length", "a line of long ago", "another"))
    check_planted(ledger, [(lambda twin: (), gone)])
    assert ledger.finish() == 1
    assert "run_length: another for a line of long ago: False, expected True" in (
        capsys.readouterr().out
    )
