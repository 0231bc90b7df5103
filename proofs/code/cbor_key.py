"""Different keys never have the same bytes, and a key has the bytes of its heads and contents.

Statement (KV-HASH-1, KV-HASH-2): no head written by `put_head`, run unchanged, is a prefix of
another one. So from the same bytes at the same place one reads the same head, finds the same
number of bytes and of values behind it, and continues at the same place with as many values left
(`reading`): by induction over the heads of [parent, tokens, extra keys] the values are the same.
And what `Hasher.hash_blocks` hashes is the CBOR of parent, tokens and extra keys, as cbor2 writes
it (KV-HASH-11 with them): for tokens on both sides of each length of a head, blocks of 1, 3 and 24
tokens, more of them than there are rooms for messages, hashed in one call or two.

Each part of a head is shown to be needed, and off-by-ones are found.
"""

from __future__ import annotations

import sys
from array import array
from itertools import cycle, islice, product, starmap
from types import MappingProxyType

import cbor2
import z3

from kvfast._core import hashing
from kvfast._core.hashing import Hasher
from proofs._z3 import Ledger, Term
from proofs.code._planted import Planted
from proofs.code.cbor_head import BITS, written

ASSUMES = ("heads of values are the shortest",)
GUARANTEES = ("two different keys never have the same bytes",)

KEYS = (("lora", "sql", None), ("mm", "img", -3))
"""Extra keys of two kinds (KV-HASH-7)."""
FUNCTIONS = MappingProxyType({32: "sha256_cbor", 8: "sha256_cbor_64bit"})
"""By the bytes of a parent, which is a byte string (KV-HASH-2) or an int (KV-HASH-11)."""
BLOCK_SIZES = (1, 3, 24)
NUM_BLOCKS = 2 * hashing.NUM_ROOMS + 1
EDGES = (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 1)
"""Tokens, and first parents, at which the length of a head changes."""


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


def is_wrong(
    parent: int, size: int, block_size: int, first: int, extra: tuple[object, ...] | None
) -> bool:
    """Check whether a digest is not that of the key's CBOR, for blocks hashed in two calls."""
    hasher = Hasher(FUNCTIONS[size], "seed")
    hasher.set_none_hash(parent.to_bytes(size, "big"))
    end = first + NUM_BLOCKS
    tokens = memoryview(array("q", islice(cycle(EDGES), end * block_size)))
    digests, spelled = memoryview(bytearray(end * size)), hashing.encode_extra_keys(extra)
    room = memoryview(bytearray(hasher.message_bytes(block_size, len(spelled))))
    rest = (block_size, digests, memoryview(spelled), len(spelled), room)
    hasher.hash_blocks(tokens, 0, first, *rest)
    hasher.hash_blocks(tokens, first, end, *rest)
    before = hasher.none_hash
    for block in range(end):
        own = tokens[block * block_size : (block + 1) * block_size].tolist()
        value = int.from_bytes(before, "big") if hasher.parent_is_int else before
        before = bytes(digests[block * size : (block + 1) * size])
        if before != hasher.digest.of(cbor2.dumps((value, own, extra), canonical=True)):
            return True
    return False


def check_messages(ledger: Ledger) -> None:
    """Check that what is hashed is the CBOR of the key, and find off-by-ones."""
    blocks = list(product(EDGES, FUNCTIONS, BLOCK_SIZES, (0, 1, 3), (None, KEYS)))
    ledger.agree("messages", not any(starmap(is_wrong, blocks)))
    for planted in PLANTED:
        with planted.done():
            ledger.agree(f"mistake: {planted}", any(starmap(is_wrong, blocks)))


PLANTED = (
    Planted("KV-HASH-11", (Hasher, "shorten_parent", "8 - length - 1", "8 - length")),
    Planted("KV-HASH-1", (Hasher, "hash_blocks", "at - size, size", "at - size + 1, size")),
    Planted("KV-HASH-2", (Hasher, "put_frame", "ARRAY, block_size", "ARRAY, block_size + 1")),
    Planted(
        "KV-HASH-2", (Hasher, "put_body", "last - block_size, last", "last - block_size, last - 1")
    ),
)


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("cbor_key")
    check_heads(ledger)
    check_reading(ledger)
    check_messages(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
