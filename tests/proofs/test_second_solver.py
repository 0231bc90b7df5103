"""cvc5's answers are counted, and one that contradicts z3 fails the proof."""

from __future__ import annotations

import sys

import pytest
import z3

from proofs import _cvc5, _z3
from proofs.code import cbor_head


@pytest.mark.parametrize(
    ("answer", "other", "said"),
    [
        ("unsat", "unsat", _cvc5.CONFIRMED),
        ("sat", "unsat", _cvc5.DIFFERENT),
        ("unsat", "unknown (RESOURCEOUT)", _cvc5.UNKNOWN),
        ("unknown", "unknown", _cvc5.UNKNOWN),
        ("unsat", "", _cvc5.UNKNOWN),
    ],
)
def test_only_the_same_answer_confirms(answer: str, other: str, said: str) -> None:
    assert _cvc5.compared(answer, other) == said


@pytest.mark.parametrize("second", ["z3 again", "a liar", "silence"])
def test_what_the_second_solver_says_is_told(
    second: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """z3 itself reads the question back; who answers the contrary, or never, confirms nothing."""

    def answer_of(text: str) -> str:
        solver = z3.Solver()
        solver.from_string(text)
        answer = str(solver.check())
        if second == "silence":
            return "unknown"
        other = {"sat": "unsat", "unsat": "sat"}[answer]
        return other if second == "a liar" else answer

    monkeypatch.setattr(_cvc5, "answer_of", answer_of)
    monkeypatch.setattr(sys, "argv", ["cbor_head", "--solver", "cvc5"])
    code = _z3.run(cbor_head.main)
    said = capsys.readouterr().out.splitlines()
    assert code == (0 if second == "z3 again" else 1)
    assert said[0] == "cbor_head: 15 passed, 0 failed"
    place = {"z3 again": 0, "silence": 1, "a liar": 3}[second]
    counts = [15 if n == place else 0 for n in range(4)]
    assert [int(word) for word in said[-1].split() if word.isdigit()][-4:] == counts


def test_cvc5_reads_what_z3_was_asked() -> None:
    pytest.importorskip("cvc5")
    x = z3.Int("a number")
    solver = z3.Solver()
    solver.add(x / 2 * 2 == x, x > 6, x < 8)
    assert _cvc5.answer_of(solver.to_smt2()) == "unsat"


def test_a_conjunction_of_nothing_is_written_as_true() -> None:
    """z3 itself writes `and`, which cvc5 does not read."""
    a, b = z3.Bools("a b")
    solver = z3.Solver()
    solver.add(z3.And(a, z3.And()), z3.Or(b, z3.Or()))
    assert "(and a and)" in solver.to_smt2()
    assert "(and a true)" in _cvc5.text_of(solver)
    assert "(or b false)" in _cvc5.text_of(solver)
