"""The ring of kvfast is the free queue of the specification, for any number of blocks.

A ring *is* a sequence if the successor and predecessor of each block are those at the next and the
previous position, null is at both ends, and no block is at two positions (`is_queue`).
Statement: each operation of `kvfast._core.pool` that starts at a ring which is a sequence ends at
one which is the sequence that KV-POOL-2 … KV-POOL-6 name.

`link`, `put`, `unlink`, `take`, `drop_ref`, and `touch` of one block, are run unchanged, on
unknown memory (`_symbolic`), except that `take` drops no keys, which are not part of the ring, and
predicts no blocks, which writes nothing in it. So is `__init__`. The number of free blocks is
compared after each. A block that is put into the queue must not be in it (KV-POOL-15), which
invariants check. Whole calls of `allocate`, `release` and `set_queue` are explored in
`contracts/pool.py`.

Each operation is shown to be possible, and mistakes in it are found in a ring of a few blocks.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import z3

from kvfast._core import pool as module
from kvfast._core import record
from kvfast._core.pool import BlockPool
from proofs._z3 import Ledger, Term, ask
from proofs.code._planted import Planted
from proofs.code._queue.operations import OPERATIONS, Operation
from proofs.code._queue.ring import any_pool, any_queue, is_queue, world
from proofs.code._symbolic import Facts, NoGuesses, SymbolicPool, UndecidedError, as_int

ASSUMES = ("a block that is put into the queue is not in it", "there are less than 2^31 blocks")
GUARANTEES = (
    "the ring is the free queue, and each operation does what the rule says",
    "the pool gives the blocks that the queue says",
)

SIZE = 3  # blocks of the ring in which a mistake is looked for


def assumed(operation: Operation, size: int | None) -> list[Term]:
    """Return the assumptions before an operation."""
    seq = any_queue(size)
    return [world(seq), operation.start(any_pool(), seq), operation.allowed(seq)]


def claimed(operation: Operation, size: int | None) -> Term:
    """Return the claim after it."""
    seq = any_queue(size)
    # Assumptions without quantifiers decide the branches of the code.
    known = (world(seq), operation.allowed(seq))
    pool = any_pool(*known, unhashed_to_front=operation.unhashed_to_front)
    answer = operation.run(pool, seq)
    return operation.end(pool, seq, answer)


def started() -> tuple[Term, Term]:
    """Return the assumption and the claim that a new pool is the queue 1, 2, … (KV-POOL-2)."""
    seq = any_queue()
    queue = replace(
        seq,
        at=lambda p: z3.If(p == seq.num_blocks, 0, p),
        pos=lambda b: b,
        low=z3.IntVal(0),
        high=seq.num_blocks,
    )
    zeros = dict.fromkeys((record.NEXT, record.PREV), lambda block: z3.IntVal(0))
    made: Any = object.__new__(SymbolicPool)
    with patch.multiple(
        module,
        KeyMap=lambda *_: SimpleNamespace(facts=Facts(zeros)),
        Upcoming=lambda *_: NoGuesses(),
        zeroed=lambda *_: [],
    ):
        options: Any = {"unhashed_to_front": True, "removed_per_copy": True}
        number = as_int(seq.num_blocks)
        BlockPool.__init__(made, number, 1, events=None, residency=None, **options)
    nothing = made.num_more == made.free_more == 0 and not made.has_partial
    return world(seq), z3.And(z3.BoolVal(nothing), is_queue(made, queue))


def check_operations(ledger: Ledger) -> None:
    """Prove each operation, and show that it can happen."""
    for call in OPERATIONS:
        ledger.prove(call.name, assumed(call, None), claimed(call, None))
        ledger.possible(f"{call.name} is possible", *assumed(call, SIZE))


PLANTED = (
    Planted("KV-POOL-3", (BlockPool, "take", "self.link(0, after)", "self.link(0, block)")),
    Planted("KV-POOL-5", (BlockPool, "link", "left - right + 1", "left - right")),
    Planted("KV-POOL-5", (BlockPool, "unlink", "self.num_free -= 1", "self.num_free -= 2")),
    Planted("KV-POOL-5", (BlockPool, "touch", "REFS] == 0", "REFS] <= 1")),
    Planted("KV-POOL-6", (BlockPool, "put", "self.num_free += 1", "self.num_free += 0")),
    Planted("KV-POOL-6", (BlockPool, "drop_ref", "REFS] > 0", "REFS] > 1")),
)


def check_planted(ledger: Ledger) -> None:
    """Find each mistake in a ring of a few blocks, or an undecided question in its code."""
    for planted in PLANTED:
        with planted.done():
            ledger.agree(f"mistake: {planted}", any(map(is_wrong, OPERATIONS)))


def is_wrong(call: Operation) -> bool:
    """Check whether a call can break its claim."""
    try:
        wrong = z3.Not(claimed(call, SIZE))
    except (UndecidedError, IndexError):
        return True
    return ask([*assumed(call, SIZE), wrong]) == "sat"


def check_start(ledger: Ledger) -> None:
    """Prove how a pool starts, and find a mistake in it."""
    known, claim = started()
    ledger.prove("start", [known], claim)
    planted = Planted("KV-POOL-2", (BlockPool, "__init__", "num_blocks - 1, 0", "num_blocks, 0"))
    with planted.done():
        known, claim = started()
    ledger.refute(f"mistake: {planted}", [known], claim)


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("free_queue")
    check_start(ledger)
    check_operations(ledger)
    check_planted(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
