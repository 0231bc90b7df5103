"""Hashes for engines that hash themselves: the engine's list of tokens in, a list of hashes out.

Each hash is the digest of (parent, tokens, extra keys), as CBOR (see `hashing`) or pickled. The
pickle of protocol 5, with the parent where a message has it, is

    80 05 95 · length of what follows, 8 bytes · 43 · size   the parent   94 28 · tokens · 74 94 ·
    extra keys · 87 94 2e
"""

from __future__ import annotations

import pickle

from . import objects, token_copy
from .hashing import Hasher, HashJob, encode_extra_keys

PARENT = 16  # as in hashing
PICKLE_START = 3
"""Where a pickled message begins: 13 bytes before the parent."""
FRAME_START = 14
"""Where the part begins whose length is told."""
PROTOCOL, FRAME, SHORT_BYTES, MEMOIZE, MARK = 0x80, 0x95, 0x43, 0x94, 0x28
ONE_BYTE = 0x4B
"""Before a number of one byte; 2 more before two bytes, 1 less before four."""

UNLOCKED = 1024  # tokens, as in request

PICKLE_TOKEN_BITS = 31
FEWEST_IN_PICKLE = 4
"""Pickle spells tuples of fewer otherwise."""
MOST_IN_PICKLE = 4096
"""A pickle of 64 KiB and more is cut into frames."""


class PickledHasher(Hasher):
    """As `Hasher`, of the digest that `function` names, over pickles.

    Tokens have at most 31 bits, and `extra` is what stands behind them in the pickle.
    """

    def hash_blocks(
        self,
        tokens: memoryview[int],
        first: int,
        end: int,
        block_size: int,
        digests: memoryview[int],
        extra: memoryview[int],
        message: memoryview[int],
    ) -> None:
        """See `Hasher.hash_blocks`."""
        size = self.size
        at = first * size
        for i in range(size):
            message[PARENT + i] = self.first_parent[i] if first == 0 else digests[at - size + i]
        body = self.put_frame(message)
        for block in range(first, end):
            n = body
            for i in range(block * block_size, (block + 1) * block_size):
                token = tokens[i]
                two: int = token > 255
                four: int = token > 65535
                message[n] = ONE_BYTE + 2 * two - 3 * four
                message[n + 1] = token & 255
                message[n + 2] = (token >> 8) & 255
                message[n + 3] = (token >> 16) & 255
                message[n + 4] = (token >> 24) & 255
                n += 2 + two + 2 * four
            for i in range(len(extra)):
                message[n + i] = extra[i]
            n += len(extra)
            message[PICKLE_START + 3] = (n - FRAME_START) & 255
            message[PICKLE_START + 4] = (n - FRAME_START) >> 8
            self.digest.put(message, PICKLE_START, n, PARENT, digests, at)
            at += size

    def put_frame(self, message: memoryview[int]) -> int:
        """Write what stands around the parent; where the tokens begin."""
        for i in range(PICKLE_START, PARENT):
            message[i] = 0
        message[PICKLE_START] = PROTOCOL
        message[PICKLE_START + 1] = 5
        message[PICKLE_START + 2] = FRAME
        message[PARENT - 2] = SHORT_BYTES
        message[PARENT - 1] = self.size
        message[PARENT + self.size] = MEMOIZE
        message[PARENT + self.size + 1] = MARK
        return PARENT + self.size + 2


class BlockChain:
    """Hashes of blocks of `block_size` tokens, each over the one before it.

    `copied` and `message` are kept from one call to the next; `is_used`: by a call that goes on.
    """

    def __init__(self, hasher: Hasher, block_size: int) -> None:
        self.hasher = hasher
        self.hasher.check_made()
        self.block_size = block_size
        self.is_pickled = isinstance(hasher, PickledHasher)
        self.is_used = False
        self.room_tokens = self.room_extra = -1

    def spelled(self, keys: object) -> bytes | None:
        """The extra keys as `hashes` takes them; None where they cannot be spelled."""
        if not self.is_pickled:
            return encode_extra_keys(keys) if are_plain(keys) else None
        data = pickle.dumps((b"", (0,) * FEWEST_IN_PICKLE, keys), protocol=5)
        start = PARENT - PICKLE_START + 2 + 2 * FEWEST_IN_PICKLE
        return data[start:] if len(data) < MOST_IN_PICKLE else None

    def hashes(self, tokens: list[int], parent: bytes, extra: bytes) -> list[bytes] | None:
        """The hashes of all full blocks of these tokens, which have the same extra keys.

        None for a parent of another size, or for what is no token id.
        """
        if self.is_used:  # by another thread
            return BlockChain(self.hasher, self.block_size).hashes(tokens, parent, extra)
        self.is_used = True
        try:
            return self.hash_all(tokens, parent, extra)
        finally:
            self.is_used = False

    def hash_all(self, tokens: list[int], parent: bytes, extra: bytes) -> list[bytes] | None:
        """`hashes`, alone."""
        size = self.hasher.size
        num_tokens = len(tokens)
        self.make_room(num_tokens, len(extra))
        if len(parent) != size or not self.copy_in(tokens, num_tokens):
            return None
        end = num_tokens // self.block_size + 1
        made = bytearray(size * end)
        made[:size] = parent
        digests = memoryview(made)
        spelled = memoryview(extra)
        if num_tokens < UNLOCKED:
            self.hasher.hash_blocks(
                self.copied, 1, end, self.block_size, digests, spelled, self.message
            )
        else:
            HashJob(
                self.hasher, self.copied, 1, end, self.block_size, digests, spelled, self.message
            ).call()
        return objects.pieces_of(digests, size, 1, end)

    def make_room(self, num_tokens: int, extra_bytes: int) -> None:
        """Let so much fit; before the first block there is one that only has a hash."""
        if num_tokens > self.room_tokens:
            room = num_tokens + num_tokens // 4
            self.copied = memoryview(bytearray(8 * (room + self.block_size))).cast("q")
            self.room_tokens = room
        if extra_bytes > self.room_extra:
            num_bytes = self.hasher.message_bytes(self.block_size, extra_bytes)
            self.message = memoryview(bytearray(num_bytes))
            self.room_extra = extra_bytes

    def copy_in(self, tokens: list[int], num_tokens: int) -> bool:
        """Whether these are tokens that can be hashed, and were copied."""
        start = self.block_size
        if token_copy.put_list(self.copied, start, tokens, num_tokens) != num_tokens:
            return False
        seen = 0
        for i in range(start, start + num_tokens if self.is_pickled else start):
            seen |= self.copied[i]
        return seen >> PICKLE_TOKEN_BITS == 0


def are_plain(keys: object) -> bool:
    """Whether CBOR has one way to spell them: texts, bytes and numbers, in tuples."""
    if type(keys) is tuple:
        return all(are_plain(key) for key in keys)
    return keys is None or type(keys) in (str, bytes, int)


def block_chain(function: str, block_size: int, is_pickled: bool) -> BlockChain | None:
    """A chain of the digest that `function` names; None where blocks of this size can't be."""
    if not is_pickled:
        return BlockChain(Hasher(function, "0", False), block_size)
    if not FEWEST_IN_PICKLE <= block_size <= MOST_IN_PICKLE:
        return None
    return BlockChain(PickledHasher(function, "0", False), block_size)
