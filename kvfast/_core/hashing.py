"""Block hashes, which identify the content of a block and of all before it (KV-HASH-*).

The CBOR of [parent, tokens, extra keys] is written into a buffer of bytes, the *message*, without a
Python object per token:

    0        16 - head  16                  16 + size                               scratch
    83   ·   head of the parent             head of the array · tokens · extra keys · padding

Messages use rooms in turn, which follow the memory of digests; each digest is written where the
next message has its parent. SHA-256 is a chain of dependent steps, so the processor writes the next
tokens meanwhile if that takes few instructions and few calls.
"""

from __future__ import annotations

import os

from kvspec.config import GIVEN_HASHES
from kvspec.errors import InvalidArgumentError

from . import objects
from .digest import CONTEXT_BYTES, PADDING_BYTES, Digest, Unlocked

NUM_ROOMS = 8
"""A power of two. On some processors hashing takes a third longer at places whose physical address
shares some bits with that of SHA-256's constants. Programs cannot see which; of eight it is one or
two.
"""
PLACES = NUM_ROOMS * CONTEXT_BYTES
"""The start of the first room."""
PARENT = 16
"""The place of the parent in a message."""
FRAME_START = 14
"""The start of the part of a pickle whose length is written before it."""

UINT = 0
NEGATIVE = 1
BYTES = 2
TEXT = 3
ARRAY = 4
"""Major types of CBOR."""

ARRAY_OF_3 = (ARRAY << 5) + 3
UINT_OF_8_BYTES = 27

NULL = b"\xf6"
"""The CBOR of null: no extra keys."""


def put_head(message: memoryview[int], at: int, major: int, value: int) -> int:
    """Write a major type and its argument in the fewest bytes; returns the place after them.

    An argument up to 23 is part of the first byte. Otherwise that says whether 1, 2, 4 or 8 bytes
    follow, most significant first. Eight are always written, which avoids a branch that the
    processor could mispredict; the next value overwrites the excess.
    """
    one: int = value > 23
    two: int = value > 255
    four: int = value > 65535
    eight: int = (value >> 32) > 0
    num_bytes = one + two + 2 * four + 4 * eight
    left = value << ((64 - 8 * num_bytes) & 63)
    objects.put_eight(message, at + 1, left)
    message[at] = (major << 5) + value + one * (23 + one + two + four + eight - value)
    return at + 1 + num_bytes


class Message:
    """Room for a message."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def make_room(self, size_bytes: int) -> None:
        """Make room for this many bytes."""
        if size_bytes > self.size_bytes:
            self.data = memoryview(bytearray(size_bytes))
            self.size_bytes = size_bytes


class Hasher:
    """One hash function with its seed; `tags`: extra keys are hashed with their kinds.

    `none_hash` is the parent of every request's first block (KV-HASH-3), `size` the length of a
    hash in bytes, `words_per_digest` in words of 64 bits. `start` is where a message begins in its
    room, unless its parent is an int; `tells_length`: a pickle contains its length. With `is_given`
    it never hashes: the engine passes the hashes (KV-HASH-13). `ahead`: tokens after a block that
    its hash also covers (KV-HASH-14). UnsupportedError when xxhash_cbor has no code to run.
    """

    def __init__(self, function: str, seed: str | None, tags: bool = True, ahead: int = 0) -> None:
        if self.is_ready():  # requests have hashes of its size
            raise InvalidArgumentError("hash_function", function, "given once")
        self.function = function
        self.tags = tags
        self.ahead = ahead
        self.is_given = function in GIVEN_HASHES
        self.digest = Digest("sha256_cbor" if self.is_given else function)
        self.size = GIVEN_HASHES[function] if self.is_given else self.digest.size
        self.words_per_digest = self.size // 8
        self.parent_is_int = function == "sha256_cbor_64bit"
        self.tells_length = False
        self.start = PARENT - 2 - (self.size > 23)
        self.no_extra = memoryview(NULL)
        self.messages: list[Message] = []
        if self.is_given:
            self.set_none_hash(bytes(self.size))
        elif seed is None:
            self.set_none_hash(os.urandom(self.size))
        else:
            self.set_none_hash(self.digest.of(encode_text(seed)))
        self.is_made = True

    def is_ready(self) -> bool:
        """Return whether `__init__` ran, and not only `__new__`."""
        try:
            return self.is_made
        except AttributeError:  # uncompiled
            return False

    def check_made(self) -> None:
        """Raise for what `__new__` left."""
        if not self.is_ready():
            raise InvalidArgumentError("hasher", None, "that of a manager")

    def set_none_hash(self, none_hash: bytes) -> None:
        """Take over another first parent; requests made before keep hashes under the old one."""
        if type(none_hash) is not bytes or len(none_hash) != self.size:
            raise InvalidArgumentError("none_hash", none_hash, f"{self.size} bytes")
        self.none_hash = none_hash
        self.first_parent = memoryview(none_hash)

    def room_bytes(self, block_size: int, extra_bytes: int) -> int:
        """Return the bytes for the message of any block of this size, in whole cache lines."""
        text = PARENT + self.size + 9 * (2 + block_size + self.ahead) + extra_bytes
        return (text + PADDING_BYTES + 63) & ~63

    def message_bytes(self, block_size: int, extra_bytes: int) -> int:
        """Return the length of a buffer for messages of blocks of this size."""
        return PLACES + NUM_ROOMS * self.room_bytes(block_size, extra_bytes)

    def take_message(self, size_bytes: int) -> Message:
        """Take room for a message, which no other call uses until it is back in `messages`."""
        try:
            message = self.messages.pop()  # in one go: other threads take theirs
        except IndexError:
            message = Message()
        message.make_room(size_bytes)
        return message

    def hash_blocks(
        self,
        tokens: memoryview[int],
        first: int,
        end: int,
        block_size: int,
        digests: memoryview[int],
        extra: memoryview[int],
        extra_bytes: int,
        message: memoryview[int],
    ) -> None:
        """Hash the blocks `first` … `end - 1` of `tokens`, all with the same extra keys.

        `digests` holds hash k at byte k·size, including that of block `first - 1`. `extra` is what
        follows the tokens. `message` has at least `message_bytes`. Compiled, all four are passed as
        addresses. Trusts its arguments.
        """
        size = self.size
        at = first * size
        own = 0
        here = PLACES
        room_bytes = self.room_bytes(block_size, extra_bytes)
        there = here + room_bytes
        if first == 0:
            first_parent = objects.read_bytes_of(self.first_parent)
            objects.copy_bytes(message, here + PARENT, first_parent, 0, size)
        else:
            objects.copy_bytes(message, here + PARENT, digests, at - size, size)
        body = self.put_frame(message, here, block_size) - here
        for block in range(first, end):
            if block + 1 < min(end, first + NUM_ROOMS):
                objects.copy_bytes(message, there, message, PLACES, body)
            n = self.put_body(message, here, body, tokens, block, block_size, extra, extra_bytes)
            start = here + self.start
            if self.parent_is_int:
                start = self.shorten_parent(message, here)
                objects.put_padding(message, start, n)
            self.digest.put(message, own, start, n, there + PARENT, digests, at)
            at += size
            own = (own + CONTEXT_BYTES) & (PLACES - 1)
            here = there
            there += room_bytes
            if there == PLACES + NUM_ROOMS * room_bytes:
                there = PLACES

    def put_body(
        self,
        message: memoryview[int],
        place: int,
        body: int,
        tokens: memoryview[int],
        block: int,
        block_size: int,
        extra: memoryview[int],
        extra_bytes: int,
    ) -> int:
        """Write `body` bytes after the parent, from `place`; returns where they end."""
        last = (block + 1) * block_size
        n = self.put_tokens(message, place + body, tokens, last - block_size, last)
        if self.ahead > 0:  # KV-HASH-14: the extra keys, then these tokens
            n = put_head(message, n, ARRAY, 1 + self.ahead)
        if extra_bytes == 1:
            message[n] = extra[0]
        else:
            objects.copy_bytes(message, n, extra, 0, extra_bytes)
        n += extra_bytes
        if self.ahead > 0:
            n = self.put_tokens(message, n, tokens, last, last + self.ahead)
        if self.tells_length:
            length = n - place - FRAME_START
            message[place + self.start + 3] = length & 255
            message[place + self.start + 4] = length >> 8
        if not self.parent_is_int:  # else where it begins is not known yet
            objects.put_padding(message, place + self.start, n)
        return n

    def put_frame(self, message: memoryview[int], place: int, block_size: int) -> int:
        """Write the bytes around the parent; returns where the tokens begin."""
        parent = place + PARENT
        length = 1
        message[place] = UINT_OF_8_BYTES
        if not self.parent_is_int:
            length = put_head(message, place, BYTES, self.size) - place
        for i in range(length):
            message[parent - length + i] = message[place + i]
        message[parent - length - 1] = ARRAY_OF_3
        return put_head(message, parent + self.size, ARRAY, block_size)

    def put_tokens(
        self, message: memoryview[int], at: int, tokens: memoryview[int], first: int, end: int
    ) -> int:
        """Write the tokens `first` … `end - 1`; returns the place after them."""
        while first + 4 <= end:
            length = objects.put_four_uints(message, at, tokens, first)
            if length == 0:
                break
            at += length
            first += 4
        for i in range(first, end):
            at = put_head(message, at, UINT, tokens[i])
        return at

    def shorten_parent(self, message: memoryview[int], place: int) -> int:
        """Return where the message starts if its parent is an int of 8 bytes (KV-HASH-11).

        One in 2^32 needs fewer: it moves to the right, over its own zeros. `00 … 00 2a` becomes `18
        2a`, two bytes to the left of the tokens.
        """
        parent = 0
        for i in range(place + PARENT, place + PARENT + 8):
            parent = (parent << 8) | message[i]
        if parent >> 32:
            return place + PARENT - 2
        length = put_head(message, place, UINT, parent) - place
        start = place + PARENT + 8 - length - 1
        message[start] = ARRAY_OF_3
        for i in range(length):
            message[start + 1 + i] = message[place + i]
        return start


class HashJob(Unlocked):
    """A call of `Hasher.hash_blocks` that can be made without holding the GIL.

    The caller keeps the memory that it passes.
    """

    hasher: Hasher

    def prepare(
        self,
        tokens: memoryview[int],
        first: int,
        end: int,
        block_size: int,
        digests: memoryview[int],
        extra: memoryview[int],
        extra_bytes: int,
        message: memoryview[int],
    ) -> None:
        """Set the arguments."""
        self.tokens = tokens
        self.first = first
        self.end = end
        self.block_size = block_size
        self.digests = digests
        self.extra = extra
        self.extra_bytes = extra_bytes
        self.message = message

    def run(self) -> None:
        """Make the call."""
        self.hasher.hash_blocks(
            self.tokens,
            self.first,
            self.end,
            self.block_size,
            self.digests,
            self.extra,
            self.extra_bytes,
            self.message,
        )


def encode_extra_keys(keys: object) -> bytes:
    """Return the CBOR of a block's extra keys, with or without their kinds (KV-HASH-7)."""
    if keys is None:
        return NULL
    if isinstance(keys, tuple):
        return head(ARRAY, len(keys)) + b"".join([encode_extra_keys(key) for key in keys])
    if isinstance(keys, bytes):
        return head(BYTES, len(keys)) + keys
    if isinstance(keys, int):
        return head(UINT, keys) if keys >= 0 else head(NEGATIVE, -1 - keys)
    return encode_text(str(keys))


def encode_text(text: str) -> bytes:
    """Return the CBOR of a text."""
    data = text.encode()
    return head(TEXT, len(data)) + data


def head(major: int, value: int) -> bytes:
    """Return `put_head` as bytes, for the few values beside the tokens."""
    if value < 24:
        return bytes(((major << 5) + value,))
    power = (value > 255) + (value > 65535) + (value.bit_length() > 32)
    return bytes(((major << 5) + 24 + power,)) + value.to_bytes(1 << power, "big")
