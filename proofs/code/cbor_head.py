"""The head of a CBOR value is the shortest one, for every value below 2^64 (KV-HASH-2).

`put_head` of `kvfast._core.hashing` is run unchanged on an unknown major type and value.
Statement: it writes the head of RFC 8949, section 4.2.1: up to 23 in the first
byte, else 24 … 27 there and the value in 1, 2, 4 or 8 bytes, as few as can hold it, most
significant first; it returns where they end; and each number that it writes is a byte. Heads that
get longer one value later are refuted. Compiled, four tokens below 2^31 have a shortcut
(`put_four_uints` of objects.pxd), which tests compare with the reference on both sides of each
length (tests/kvfast/test_hashing_broken.py).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import cast

import z3

from kvfast._core import hashing
from proofs._z3 import Ledger, Term

ASSUMES: tuple[str, ...] = ()
GUARANTEES = ("heads of values are the shortest",)

BITS = 80
"""More than the 64 of a value, so that a number that is too large shows."""

LENGTHS = (0, 1, 2, 4, 8)
"""Bytes that may follow the first one."""


@dataclass(frozen=True)
class Word:
    """An unknown int of which BITS bits are known to be enough; a comparison is 0 or 1."""

    term: Term

    def __gt__(self, other: int) -> Word:
        return Word(z3.If(z3.UGT(self.term, other), z3.BitVecVal(1, BITS), z3.BitVecVal(0, BITS)))

    def __add__(self, other: Word | int) -> Word:
        return Word(self.term + bits_of(other))

    def __sub__(self, other: Word) -> Word:
        return Word(self.term - other.term)

    def __mul__(self, other: Word | int) -> Word:
        return Word(self.term * bits_of(other))

    def __and__(self, other: int) -> Word:
        return Word(self.term & other)

    def __lshift__(self, other: Word | int) -> Word:
        return Word(self.term << bits_of(other))

    def __rshift__(self, other: int) -> Word:
        return Word(z3.LShR(self.term, other))

    def __radd__(self, other: int) -> Word:
        return self + other

    def __rmul__(self, other: int) -> Word:
        return self * other

    def __rsub__(self, other: int) -> Word:
        return Word(other - self.term)


def bits_of(number: Word | int) -> Term:
    """Return the term of a word; return an int unchanged."""
    return number.term if isinstance(number, Word) else number


def written(major: Term, value: Term) -> tuple[list[Term], Term]:
    """Return the nine bytes that `put_head` writes, and the end that it returns."""
    message: dict[int, Word] = {}
    end = hashing.put_head(
        cast("memoryview[int]", message), 0, cast(int, Word(major)), cast(int, Word(value))
    )
    return [message[i].term for i in range(9)], cast(Word, end).term


def is_head(data: list[Term], end: Term, major: Term, value: Term, limits: list[int]) -> Term:
    """State RFC 8949's head; `limits`: for each length, the first value too large for it."""
    cases = []
    lowest = 0
    for length, limit in zip(LENGTHS, limits, strict=True):
        first = value if length == 0 else z3.BitVecVal(23 + length.bit_length(), BITS)
        number = z3.BitVecVal(0, BITS)
        for byte in data[1 : 1 + length]:
            number = (number << 8) | byte
        right = z3.And(data[0] == (major << 5) + first, end == 1 + length)
        if length:
            right = z3.And(right, number == value)
        here = z3.And(z3.UGE(value, lowest), z3.ULT(value, limit))
        cases.append(z3.Implies(here, right))
        lowest = limit
    return z3.And(*cases)


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("cbor_head")
    major, value = z3.BitVecs("major value", BITS)
    data, end = written(major, value)
    known = [z3.ULE(major, 7), z3.ULT(value, z3.BitVecVal(1 << 64, BITS))]
    limits = [24, 1 << 8, 1 << 16, 1 << 32, 1 << 64]
    ledger.prove("bytes", known, z3.And(*(z3.ULE(byte, 255) for byte in data)))
    ledger.prove("the shortest head", known, is_head(data, end, major, value, limits))
    for place, limit in enumerate(limits[:-1]):
        for near in (limit - 1, limit):
            ledger.possible(f"a value of {near}", *known, value == near)
        later = [*limits]
        later[place] += 1
        wrong = is_head(data, end, major, value, later)
        ledger.refute(f"mistake: {limit} needs no more bytes", known, wrong)
    wider = [known[0], z3.ULE(value, z3.BitVecVal(1 << 64, BITS))]
    ledger.refute("mistake: 2^64", wider, z3.And(*(z3.ULE(byte, 255) for byte in data)))
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
