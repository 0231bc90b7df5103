"""cvc5 beside z3: it answers each question again, `python -m proofs.code.windows --solver cvc5`.

A question is handed over as SMT-LIB 2, with everything that z3 was given. An answer `unknown`, or
none within the limits, confirms nothing and contradicts nothing; `sat` against `unsat` is a
failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from unittest.mock import patch

import z3

from proofs import _z3

EFFORT = 300_000
"""Of one question, in cvc5's own units, so that a busy machine changes no answer."""
MOST_MS = 60_000
"""Of one question. Only there to end."""

DIFFERENT, CONFIRMED, UNKNOWN, UNREAD = "otherwise", "confirmed", "unknown", "not read"


def answer_of(text: str) -> str:
    """What cvc5 answers to a text that ends in `(check-sat)`."""
    import cvc5  # not part of `dev`: `pip install cvc5`

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("rlimit-per", str(EFFORT))
    solver.setOption("tlimit-per", str(MOST_MS))
    parser = cvc5.InputParser(solver)
    said = f"(set-logic ALL)\n{text}"
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, said, "question")
    symbols, answer = parser.getSymbolManager(), ""
    while not (command := parser.nextCommand()).isNull():
        answer = command.invoke(solver, symbols).strip() or answer
    return answer


def text_of(solver: z3.Solver) -> str:
    """The question as SMT-LIB. z3 writes a conjunction of nothing as `and`, which is no term."""
    empty = ((z3.And(), z3.BoolVal(True)), (z3.Or(), z3.BoolVal(False)))
    plain = z3.Solver()
    plain.add(*(z3.substitute(each, *empty) for each in solver.assertions()))
    text: str = plain.to_smt2()
    return text


def compared(answer: str, other: str) -> str:
    """What cvc5's answer says of z3's."""
    if other == answer and answer != "unknown":
        return CONFIRMED
    if {answer, other} == {"sat", "unsat"}:
        return DIFFERENT
    return UNKNOWN


def beside(main: Callable[[], int]) -> int:
    """Run a proof; 1 if it fails, or if cvc5 contradicts an answer."""
    found: Counter[str] = Counter()

    def checked(solver: z3.Solver) -> str:
        answer = str(solver.check())
        try:
            other = answer_of(text_of(solver))
        except RuntimeError as error:  # what its parser does not know
            found[UNREAD] += 1
            found[str(error).splitlines()[0]] += 1
            return answer
        found[compared(answer, other)] += 1
        return answer

    with patch.object(_z3, "checked", checked):
        code = main()
    counts = [f"{found[each]} {each}" for each in (CONFIRMED, UNKNOWN, UNREAD, DIFFERENT)]
    total = sum(found[each] for each in (CONFIRMED, UNKNOWN, UNREAD, DIFFERENT))
    print(f"cvc5: of {total} questions {', '.join(counts)}")
    return 1 if code or found[DIFFERENT] or not found[CONFIRMED] else 0
