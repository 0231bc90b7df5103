"""Mistakes that are planted in the code of kvfast, so that contracts are seen to fail."""

from __future__ import annotations

from typing import Any

import kvfast._core.extra_keys as extra_keys
from kvfast._core import checks, hashing, request, token_copy
from kvfast._core.checks import Checks
from kvfast._core.key_map import KeyMap
from kvfast._core.pool import BlockPool
from kvfast._core.tables import Tables
from proofs.code.contracts._runner import Mistake


def nothing(*_: Any) -> None:
    """Do nothing."""


def none_of_them(*_: Any) -> int:
    """Count nothing."""
    return 0


# The pool.

release = BlockPool.release


def release_from_the_first_on(self: BlockPool, tables: Tables, start: int, end: int) -> None:
    """Release the first and last block in reversed order."""
    tables.arena[start], tables.arena[end - 1] = tables.arena[end - 1], tables.arena[start]
    release(self, tables, start, end)


def first_in_its_ring(self: KeyMap, entry: int, head: int) -> None:
    """Leave a copy alone in its ring."""
    self.make_ring(entry)


def whole_queue(self: BlockPool, block: int, left: int) -> int:
    """Put each freed block in front, with or without a key."""
    self.set_refs(block, self.refs(block) - 1)
    if self.refs(block) > 0:
        return left
    self.put(left, block)
    return block


KEYS_STAY = Mistake("keys of taken blocks stay", BlockPool, "evict", nothing, "KV-POOL-4")
HITS_STAY = Mistake("hits stay in the queue", BlockPool, "unlink", nothing, "KV-POOL-5")
TURNED = Mistake(
    "released the other way", BlockPool, "release", release_from_the_first_on, "KV-POOL-6"
)
ALL_IN_FRONT = Mistake("all in front", BlockPool, "drop_ref", whole_queue, "KV-POOL-6")
NO_EVENT = Mistake("a block keeps its keys", BlockPool, "drop_keys", nothing, "KV-POOL-10")
NO_COPIES = Mistake("copies are no ring", KeyMap, "join", first_in_its_ring, "KV-POOL-14")
COVERS_NOTHING = Mistake("keys cover nothing", BlockPool, "covered", none_of_them, "KV-PART-3")


# Hashing and arguments.


def longer_later(major: int, value: int) -> bytes:
    """Write a head that is too short for 24."""
    if value < 25:
        return bytes(((major << 5) + value,))
    return head(major, value)


head = hashing.head


def one_block_more(self: Checks, block: int) -> int:
    """Accept any number as a block."""
    return block


def first_item(*_: Any) -> int:
    """Count also items before a block."""
    return 0


def far(*_: Any) -> int:
    """Return a position behind every change."""
    return 2**63 - 1


ITEMS_BEFORE = Mistake("items before the block", extra_keys, "_first_item", first_item, "KV-HASH-8")
NO_CHANGE = Mistake("nothing changes", extra_keys, "_next_change", far, "KV-HASH-7")
HEAD_LATER = Mistake("24 in the first byte", hashing, "head", longer_later, "KV-HASH-2")
FEWER_COUNTS = Mistake("52 bits", request, "COUNT_BITS", 52, "KV-ERR-6")
MORE_COUNTS = Mistake("54 bits", checks, "COUNT_BITS", 54, "KV-ERR-6")
ANY_BLOCK = Mistake("any block", Checks, "checked_block", one_block_more, "KV-ERR-3")
FEWER_TOKENS = Mistake("a token less", token_copy, "TOKEN_ID_MAX", 2**63 - 2, "KV-REQ-1")
