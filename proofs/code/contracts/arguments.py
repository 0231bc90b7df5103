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
    """Check whether kvref accepts a number as a count (KV-ERR-6)."""
    try:
        reference.check_counts(value=value)
    except InvalidArgumentError:
        return False
    return True


def is_count_fast(value: int) -> bool:
    """Check whether kvfast accepts it where the scheduler assigns it."""
    return request.count_of(value) >= 0


def is_counted_fast(value: int) -> bool:
    """Check whether kvfast accepts it in a call."""
    try:
        return object.__new__(Checks).counted("value", value) == value
    except InvalidArgumentError:
        return False


def is_count_again(value: int) -> bool:
    """Call `is_count`."""
    return is_count(value)


def is_block(block: int) -> bool:
    """Check whether kvref accepts a number as a block of the pool (KV-ERR-3)."""
    try:
        return reference.block_ids((block,), 4) == [block]
    except UnknownBlockError:
        return False


def is_block_fast(block: int) -> bool:
    """Check whether kvfast does."""
    checks = object.__new__(Checks)
    checks.pool = fast_pool((), (1, 1, 1))
    try:
        return checks.checked_block(block) == block
    except UnknownBlockError:
        return False


def are_tokens(first: int, second: int) -> bool:
    """Check whether kvspec accepts numbers as tokens (KV-REQ-1)."""
    try:
        check_token_ids((first, second))
    except InvalidArgumentError:
        return False
    return True


def are_tokens_fast(first: int, second: int) -> bool:
    """Check whether kvfast does."""
    room = cast("memoryview[int]", [0, 0])
    return token_copy.put_list(room, 0, [first, second], 2) == 2


MORE_ASSIGNED = Planted(
    "KV-ERR-6", (request, "count_of", ">> COUNT_BITS == 0", ">> COUNT_BITS <= 1")
)
MORE_COUNTS = Planted("KV-ERR-6", (Checks, "counted", ">> COUNT_BITS == 0", ">> COUNT_BITS <= 1"))
ONE_BEHIND = Planted(
    "KV-ERR-3", (Checks, "checked_block", "< self.pool.num_blocks", "<= self.pool.num_blocks")
)
FEWER_TOKENS = Planted("KV-REQ-1", (token_copy, "put_list", "token > largest", "token >= largest"))

CONTRACTS = (
    Contract(is_count, mistakes=(MORE_ASSIGNED,), other=is_count_fast),
    Contract(is_count_again, mistakes=(MORE_COUNTS,), other=is_counted_fast),
    Contract(is_block, mistakes=(ONE_BEHIND,), other=is_block_fast),
    Contract(are_tokens, mistakes=(FEWER_TOKENS,), other=are_tokens_fast),
)


if __name__ == "__main__":
    sys.exit(main("arguments"))
