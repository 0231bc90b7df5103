"""Layout of the facts about a block: 64 bytes each, so that one cache line has them all.

`facts` is one flat array of 32-bit ints; that of block b begins at `INTS * b`. The hash of its key
comes first, read as 64-bit words from `WORDS * b` of the same memory. Memory that was never written
is zero, and zeros mean a block without key and reference, whose neighbours in the free queue are
those by id: so a pool of any size exists at once.

Compiled, the same numbers are constants of `_compiled/record_fields.pxd`.
"""

from __future__ import annotations

INTS = 16
"""32-bit ints of one record."""
WORDS = 8
"""64-bit words of one record."""

GROUP = 8
"""The group of the key."""
DUP_NEXT = 9
"""The next entry with the same key, in the ring of them; 0: the entry is not in the map."""
DUP_PREV = 10
"""The one before."""
NEXT = 11
"""The next in the free queue, as a distance from the next id: 0 means block b + 1."""
PREV = 12
"""Before it in the free queue, as a distance from the id before: 0 means block b - 1."""
REFS = 13
"""References to the block; a block without one is in the free queue."""
OWNER = 13
"""Of an additional entry: its block."""
COVERED = 14
"""Hashes, from the start of the request, that the primary key covers."""
HOME = 15
"""The home of its key's slot; the same for all entries with the key."""
