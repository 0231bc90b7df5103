"""Hashes for engines that hash themselves: the engine's list of tokens in, a list of hashes out.

Each hash is the digest of (parent, tokens, extra keys), as CBOR (see `hashing`) or pickled. The
pickle of protocol 5, with the parent where a message has it, is

    80 05 95 · length of what follows, 8 bytes · 43 · size   the parent   94 28 · tokens · 74 94 ·
    extra keys · 87 94 2e
"""

from __future__ import annotations

import pickle

from . import objects, token_copy
from .digest import Unlocked
from .hashing import Hasher, encode_extra_keys

PARENT = 16  # as in hashing
PICKLE_START = 3
"""The start of a pickled message: 13 bytes before the parent."""
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
    """A `Hasher` of the digest that `function` names, over pickles.

    Tokens have at most 31 bits, and `extra` is what follows them in the pickle.
    """

    def __init__(self, function: str, seed: str | None, tags: bool = True) -> None:
        super().__init__(function, seed, tags)
        self.tells_length = True
        self.start = PICKLE_START

    def put_frame(self, message: memoryview[int], place: int, block_size: int) -> int:
        """See `Hasher.put_frame`."""
        for i in range(PICKLE_START, PARENT):
            message[place + i] = 0
        message[place + PICKLE_START] = PROTOCOL
        message[place + PICKLE_START + 1] = 5
        message[place + PICKLE_START + 2] = FRAME
        message[place + PARENT - 2] = SHORT_BYTES
        message[place + PARENT - 1] = self.size
        body = place + PARENT + self.size
        message[body] = MEMOIZE
        message[body + 1] = MARK
        return body + 2

    def put_tokens(
        self, message: memoryview[int], at: int, tokens: memoryview[int], first: int, end: int
    ) -> int:
        """See `Hasher.put_tokens`."""
        for i in range(first, end):
            token = tokens[i]
            two: int = token > 255
            four: int = token > 65535
            objects.put_low_eight(message, at, (token << 8) + ONE_BYTE + 2 * two - 3 * four)
            at += 2 + two + 2 * four
        return at


class BlockChain(Unlocked):
    """Hashes of blocks of `block_size` tokens, each over the one before it.

    The other members belong to one call and are reused by the next; `is_used`: by a running call.
    """

    def __init__(self, hasher: Hasher, block_size: int) -> None:
        self.hasher = hasher
        self.hasher.check_made()
        self.block_size = block_size
        self.is_pickled = isinstance(hasher, PickledHasher)
        self.is_used = False
        self.room_tokens = self.room_extra = -1
        self.extra: bytes | None = None

    def spelled(self, keys: object) -> bytes | None:
        """Encode the extra keys for `hashes`; None if they cannot be encoded."""
        if not self.is_pickled:
            return encode_extra_keys(keys) if are_plain(keys) else None
        data = pickle.dumps((b"", (0,) * FEWEST_IN_PICKLE, keys), protocol=5)
        start = PARENT - PICKLE_START + 2 + 2 * FEWEST_IN_PICKLE
        return data[start:] if len(data) < MOST_IN_PICKLE else None

    def hashes(self, tokens: list[int], parent: bytes, extra: bytes) -> list[bytes] | None:
        """Return the hashes of all full blocks of these tokens, which have the same extra keys.

        None for a parent of another size, or if some value is not a token id.
        """
        if self.is_used:  # by another thread
            return BlockChain(self.hasher, self.block_size).hashes(tokens, parent, extra)
        self.is_used = True
        try:
            return self.hash_all(tokens, parent, extra)
        finally:
            self.is_used = False

    def hash_all(self, tokens: list[int], parent: bytes, extra: bytes) -> list[bytes] | None:
        """Do `hashes` when no other call is running."""
        size = self.hasher.size
        num_tokens = len(tokens)
        self.make_room(num_tokens, extra)
        if len(parent) != size or not self.copy_in(tokens, num_tokens):
            return None
        made = objects.bytes_in(self.digests)
        for i in range(size):
            made[i] = parent[i]
        self.end = num_tokens // self.block_size + 1
        if num_tokens < UNLOCKED:
            self.run()
        else:
            self.call()
        return objects.pieces_of(made, size, 1, self.end)

    def run(self) -> None:
        """Hash the copied tokens."""
        self.hasher.hash_blocks(
            objects.longs_of(self.copied),
            1,
            self.end,
            self.block_size,
            objects.bytes_in(self.digests),
            objects.read_bytes_of(self.spelled_extra),
            len(self.spelled_extra),
            objects.bytes_of(self.message),
        )

    def make_room(self, num_tokens: int, extra: bytes) -> None:
        """Let so much fit; before the first block there is one that only has a hash."""
        if num_tokens > self.room_tokens:
            room = num_tokens + num_tokens // 4
            self.copied = objects.longs(room + self.block_size)
            num_hashes = room // self.block_size + 1
            self.digests = objects.words(self.hasher.words_per_digest * num_hashes)
            self.room_tokens = room
        if len(extra) > self.room_extra:
            num_bytes = self.hasher.message_bytes(self.block_size, len(extra))
            self.message = memoryview(bytearray(num_bytes))
            self.room_extra = len(extra)
        if extra is not self.extra:
            self.spelled_extra = memoryview(extra)
            self.extra = extra

    def copy_in(self, tokens: list[int], num_tokens: int) -> bool:
        """Copy the tokens; returns whether all can be hashed."""
        start = self.block_size
        if len(tokens) != num_tokens:  # making room ran code that changed it
            return False
        if objects.put_small(tokens, objects.longs_of(self.copied), start) == num_tokens:
            return True  # of 30 bits at most
        if token_copy.put_list(self.copied, start, tokens, num_tokens) != num_tokens:
            return False
        seen = 0
        for i in range(start, start + num_tokens if self.is_pickled else start):
            seen |= self.copied[i]
        return seen >> PICKLE_TOKEN_BITS == 0


def are_plain(keys: object) -> bool:
    """Return whether CBOR has one encoding for them: texts, bytes and numbers, in tuples."""
    if type(keys) is tuple:
        return all(are_plain(key) for key in keys)
    return keys is None or type(keys) in (str, bytes, int)


def block_chain(function: str, block_size: int, is_pickled: bool) -> BlockChain | None:
    """Return a chain of the digest that `function` names; None if blocks cannot have this size."""
    if not is_pickled:
        return BlockChain(Hasher(function, "0", False), block_size)
    if not FEWEST_IN_PICKLE <= block_size <= MOST_IN_PICKLE:
        return None
    return BlockChain(PickledHasher(function, "0", False), block_size)
