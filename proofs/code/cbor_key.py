"""Different keys never have the same bytes, and a key has the bytes of its heads and contents.

Statement (KV-HASH-1, KV-HASH-2): no head written by `put_head`, run unchanged, is a prefix of
another one. So from the same bytes at the same place one reads the same head, finds the same
number of bytes and of values behind it, and continues at the same place with as many values left
(`reading`): by induction over the heads of [parent, tokens, extra keys] the values are the same.
And `Hasher.hash_blocks`, run unchanged on unknown tokens, hashes a message as long as its
heads, the parent and the extra keys together, for blocks of up to MOST_TOKENS tokens and each
length of hash; a further token adds its head only (`cbor_head.py`).

Each part of a head is shown to be needed, and a length that forgets a head is refuted.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import z3

from kvfast._core import hashing
from kvfast._core.hashing import Hasher
from proofs._z3 import Ledger, Term
from proofs.code.cbor_head import BITS, Word, bits_of, written

ASSUMES = ("heads of values are the shortest",)
GUARANTEES = ("two different keys never have the same bytes",)

MOST_TOKENS = 3
KEYS = (("lora", "sql", None), ("mm", "img", -3))
"""Extra keys of two kinds (KV-HASH-7)."""
HASH_SIZES = (16, 32)
"""Bytes of a parent that is a byte string (KV-HASH-2, KV-HASH-12)."""


def heads() -> tuple[list[Term], list[Term], list[Term]]:
    """Return majors, values and assumptions of two heads."""
    majors = list(z3.BitVecs("major1 major2", BITS))
    values = list(z3.BitVecs("value1 value2", BITS))
    limit = z3.BitVecVal(1 << 64, BITS)
    known = [z3.And(z3.ULE(m, 7), z3.ULT(v, limit)) for m, v in zip(majors, values, strict=True)]
    return majors, values, known


def check_heads(ledger: Ledger) -> None:
    """Prove that no head is a prefix of another."""
    majors, values, known = heads()
    (first, end1), (second, end2) = (written(m, v) for m, v in zip(majors, values, strict=True))

    def agree(places: range) -> Term:
        both = ((z3.And(z3.UGT(end1, i), z3.UGT(end2, i)), first[i] == second[i]) for i in places)
        return z3.And(*(z3.Implies(inside, same) for inside, same in both))

    same = z3.And(majors[0] == majors[1], values[0] == values[1])
    ledger.possible("two heads that agree", *known, agree(range(9)), end1 == 3)
    ledger.prove("no head begins another", [*known, agree(range(9))], same)
    ledger.refute("mistake: without its first byte", [*known, agree(range(1, 9))], same)
    ledger.refute("mistake: without its last bytes", [*known, agree(range(5))], same)


def reading(memory: Term, at: Term, major: Term, value: Term) -> tuple[Term, Term, Term]:
    """State that a head is at a place; return where its content ends, and the values to come."""
    data, end = written(major, value)
    stands = z3.And(
        *(z3.Implies(z3.UGT(end, i), memory(at + i) == byte) for i, byte in enumerate(data))
    )
    has_content = z3.Or(major == hashing.BYTES, major == hashing.TEXT)
    after = at + end + z3.If(has_content, value, z3.BitVecVal(0, BITS))
    return stands, after, z3.If(major == hashing.ARRAY, value, z3.BitVecVal(0, BITS))


def check_reading(ledger: Ledger) -> None:
    """Prove that bytes from one place on can be read in one way only."""
    majors, values, known = heads()
    memory = z3.Function("memory", z3.BitVecSort(BITS), z3.BitVecSort(BITS))
    at, pending = z3.BitVecs("at pending", BITS)
    (one, after1, inside1), (two, after2, inside2) = (
        reading(memory, at, m, v) for m, v in zip(majors, values, strict=True)
    )
    same = z3.And(majors[0] == majors[1], values[0] == values[1])
    goes_on = z3.And(after1 == after2, pending - 1 + inside1 == pending - 1 + inside2)
    ledger.possible("a head can be read", *known, one, two)
    ledger.prove("one reading", [*known, one, two], z3.And(same, goes_on))
    ledger.refute("mistake: after another head", [*known, one], z3.And(same, goes_on))
    offset = z3.Int("offset")
    other = z3.Int("other")
    coded = [z3.If(o >= 0, o, -1 - o) for o in (offset, other)]
    signs = (offset >= 0) == (other >= 0)
    ledger.prove("offsets differ", [signs, coded[0] == coded[1]], offset == other)
    ledger.refute("mistake: without the sign", [coded[0] == coded[1]], offset == other)


class Places(dict[Any, Any]):
    """A message that is never read; places may be unknown."""

    def __setitem__(self, place: object, byte: object) -> None:
        """Store the byte only if the place is known."""
        if isinstance(place, int):
            super().__setitem__(place, byte)


def handed_over(num_tokens: int, size: int, extra: bytes) -> Term:
    """Return the length of the message that `hash_blocks` hashes for a block of tokens."""
    spans: list[Term] = []

    def put(message: object, own: int, start: int, end: Any, *_: object) -> None:
        spans.append(bits_of(end) - start)

    hasher: Any = object.__new__(Hasher)
    hasher.size, hasher.parent_is_int, hasher.ahead = size, False, 0
    hasher.start, hasher.tells_length = hashing.PARENT - 2 - (size > 23), False
    hasher.digest = SimpleNamespace(put=put)
    hasher.first_parent = bytes(size)
    tokens = [Word(token) for token in unknown_tokens(num_tokens)]
    digests = memoryview(bytearray(size))
    hasher.hash_blocks(tokens, 0, 1, num_tokens, digests, extra, len(extra), Places())
    return spans[0]


def unknown_tokens(count: int) -> list[Term]:
    """Return unknown tokens of up to 64 bits."""
    return [z3.BitVec(f"token{i}", BITS) for i in range(count)]


def head_length(value: Term) -> Term:
    """Return the bytes of a head by RFC 8949, 4.2.1."""
    length = z3.BitVecVal(9, BITS)
    for limit, shorter in ((1 << 32, 5), (1 << 16, 3), (1 << 8, 2), (24, 1)):
        length = z3.If(z3.ULT(value, limit), z3.BitVecVal(shorter, BITS), length)
    return length


def check_lengths(ledger: Ledger) -> None:
    """Prove that a message is as long as its parts together."""
    for size in HASH_SIZES:
        for count in range(MOST_TOKENS + 1):
            for extra in (hashing.NULL, hashing.encode_extra_keys(KEYS)):
                tokens = unknown_tokens(count)
                known = [z3.ULT(token, z3.BitVecVal(1 << 64, BITS)) for token in tokens]
                parts = [head_length(z3.BitVecVal(number, BITS)) for number in (3, size, count)]
                parts += [head_length(token) for token in tokens]
                whole = z3.simplify(sum(parts, z3.BitVecVal(size + len(extra), BITS)))
                length = handed_over(count, size, extra)
                name = f"{count} tokens, a parent of {size}, {len(extra)} bytes of extra keys"
                ledger.prove(name, known, length == whole)
                ledger.refute(f"mistake: {name}, one head less", known, length == whole - 1)


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("cbor_key")
    check_heads(ledger)
    check_reading(ledger)
    check_lengths(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
