"""Which arguments are legal: kvref and kvfast refuse the same (KV-ERR-3, KV-ERR-6, KV-REQ-1).

Any ints, also those that no array holds.
"""

from __future__ import annotations

import sys
from typing import cast

import kvref.arguments as reference
from kvfast._core import request, token_copy
from kvfast._core.checks import Checks
from kvspec.errors import InvalidArgumentError, UnknownBlockError
from kvspec.request import check_token_ids
from proofs.code._planted import Planted
from proofs.code.contracts._pools import fast_pool
from proofs.code.contracts._runner import Contract, main

ASSUMES: tuple[str, ...] = ()
GUARANTEES = ("both refuse the same counts, ids of blocks and tokens",)


def is_count(value: int) -> bool:
    """Accept the same count where the scheduler assigns it (KV-ERR-6).

    post: _
    """
    return is_legal_count(value) == (request.count_of(value) >= 0)


def is_counted(value: int) -> bool:
    """Accept the same count in a call (KV-ERR-6).

    post: _
    """
    try:
        theirs = object.__new__(Checks).counted("value", value) == value
    except InvalidArgumentError:
        theirs = False
    return is_legal_count(value) == theirs


def is_legal_count(value: int) -> bool:
    """Check whether kvref accepts a number as a count."""
    try:
        reference.check_counts(value=value)
    except InvalidArgumentError:
        return False
    return True


def is_block(block: int) -> bool:
    """Accept the same blocks of a pool of four (KV-ERR-3).

    post: _
    """
    checks = object.__new__(Checks)
    checks.pool = fast_pool((), (1, 1, 1))
    try:
        theirs = checks.checked_block(block) == block
    except UnknownBlockError:
        theirs = False
    try:
        return theirs == (reference.block_ids((block,), 4) == [block])
    except UnknownBlockError:
        return not theirs


def are_tokens(first: int, second: int) -> bool:
    """Accept the same tokens as kvspec, from which kvref takes them (KV-REQ-1).

    post: _
    """
    room = cast("memoryview[int]", [0, 0])
    theirs = token_copy.put_list(room, 0, [first, second], 2) == 2
    try:
        check_token_ids((first, second))
    except InvalidArgumentError:
        return not theirs
    return theirs


MORE_ASSIGNED = Planted(
    "KV-ERR-6", (request, "count_of", ">> COUNT_BITS == 0", ">> COUNT_BITS <= 1")
)
MORE_COUNTS = Planted("KV-ERR-6", (Checks, "counted", ">> COUNT_BITS == 0", ">> COUNT_BITS <= 1"))
ONE_BEHIND = Planted(
    "KV-ERR-3", (Checks, "checked_block", "< self.pool.num_blocks", "<= self.pool.num_blocks")
)
FEWER_TOKENS = Planted("KV-REQ-1", (token_copy, "put_list", "token > largest", "token >= largest"))

CONTRACTS = (
    Contract(is_count, (MORE_ASSIGNED,)),
    Contract(is_counted, (MORE_COUNTS,)),
    Contract(is_block, (ONE_BEHIND,)),
    Contract(are_tokens, (FEWER_TOKENS,)),
)


if __name__ == "__main__":
    sys.exit(main("arguments"))
