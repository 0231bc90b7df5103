"""The compiled twin of kvfast/_core/digest.py: the same classes over C functions.

In Cython's own language: Python has no word for the address of a function.
"""

from libc.string cimport memcpy

from kvfast import _native
from kvfast._compiled.objects cimport put_eight, put_padding
from kvfast._core.digest import CONTEXT_BYTES, PADDING_BYTES, SIZES_BYTES, Digest as PlainDigest
from kvspec.errors import InvalidArgumentError, UnsupportedError

# Digests of the bytes 0, 1, 2, … by their number. SHA-256 pads 120 bytes to three chunks; XXH3 has
# a way of its own up to 3, 16, 128 and 240 bytes.
KNOWN = (
    ("sha256", 3, "ae4b3280e56e2faf83f414a6e3dabe9d5fbe18976544c05fed121accb85b53fc"),
    ("sha256", 120, "f52b23db1fbb6ded89ef42a23ce0c8922c45f25c50b568a93bf1c075420bbb7c"),
    ("xxhash", 3, "e3b55f57945a17cf5f4299fc161c9cbb"),
    ("xxhash", 16, "72950631827607e2842812cc870dcae2"),
    ("xxhash", 100, "da95ef16fd9566f329b20ba5f03ec01e"),
    ("xxhash", 200, "cb0395310643ba0edd97e9af3609d9f5"),
    ("xxhash", 256, "f1f8a93f50849ac39408a4433b952d71"),
)

cdef class Digest:
    """See the twin, which computes where no C function is found, or one with wrong answers."""

    def __init__(self, str function):
        if self.size:  # who uses it has room for digests of its size
            raise InvalidArgumentError("hash_function", function, "given once")
        found = _native.xxh3_128() if function == "xxhash_cbor" else _native.sha256()
        missing = None
        try:
            self.plain = PlainDigest(function)
            self.origin = self.plain.origin
        except UnsupportedError as error:
            missing = error
        self.size = dict(SIZES_BYTES)[function]
        if found is not None:
            self.adopt(function, found)
        if missing is not None and self.xxh3 is NULL:
            raise missing

    cdef adopt(self, str function, object found):
        """Use these functions, unless one of the known digests comes out wrong."""
        cdef tuple addresses = found.addresses
        cdef unsigned long long context[32]
        plain = self.origin
        self.origin = "C functions, found through " + found.origin
        if function == "xxhash_cbor":
            self.xxh3 = <XXH3Function><size_t>addresses[0]
        else:
            (<InitFunction><size_t>addresses[0])(context)
            self.update = <UpdateFunction><size_t>addresses[1]
            memcpy(self.initial, context, 32)
        for name, length, digest in KNOWN:
            if function.startswith(name) and self.of(bytes(range(length))) != bytes.fromhex(digest)[-self.size:]:
                self.xxh3 = NULL
                self.update = NULL
                self.origin = plain

    def of(self, bytes data):
        """The digest of `data`."""
        cdef Py_ssize_t start = CONTEXT_BYTES, end = start + len(data)
        cdef bytearray room = bytearray(start) + data + bytes(PADDING_BYTES)
        cdef unsigned char *message = room
        cdef unsigned char out[32]
        put_padding(message, start, end)
        self.put(message, 0, start, end, start, out, 0)
        return out[:self.size]

    cdef int write(
        self, const unsigned char *data, Py_ssize_t length, unsigned char *out
    ) except -1 nogil:
        cdef XXH128 both
        if self.xxh3 is NULL:
            return self.write_plain(data, length, out)
        both = self.xxh3(data, length)
        put_eight(out, 0, both.high)
        put_eight(out, 8, both.low)
        return 0

    cdef int write_plain(
        self, const unsigned char *data, Py_ssize_t length, unsigned char *out
    ) except -1 with gil:
        # On its own: a function with a part that takes the GIL takes it once more when it ends.
        cdef bytes digest = self.plain.of(data[:length])
        memcpy(out, <const unsigned char *>digest, self.size)
        return 0

    # SHA-256 of whole chunks of 64 bytes, the last ones padded here: then the state is the digest,
    # with nothing to be copied to a chunk of OpenSSL's own. The state comes first in its context,
    # whose rest is 0 in a new buffer and stays so but for the length, which only SHA256_Final reads.

    cdef int put(
        self,
        unsigned char *message,
        Py_ssize_t own,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t at,
        unsigned char *digests,
        Py_ssize_t to,
    ) except -1 nogil:
        cdef unsigned int *state = <unsigned int *>&message[own]
        cdef Py_ssize_t length = end - start
        cdef int i
        if self.update is NULL:
            self.write(&message[start], length, &message[at])
            memcpy(&digests[to], &message[at], self.size)
            return 0
        memcpy(state, self.initial, 32)
        self.update(state, &message[start], (length + 72) & ~63)
        if self.size == 32:
            for i in range(4):
                put_word(message, at + 8 * i, digests, to + 8 * i, state[2 * i], state[2 * i + 1])
        else:
            put_word(message, at, digests, to, state[6], state[7])
        return 0


cdef inline void put_word(
    unsigned char *message,
    Py_ssize_t at,
    unsigned char *digests,
    Py_ssize_t to,
    unsigned long long high,
    unsigned int low,
) noexcept nogil:
    put_eight(message, at, high << 32 | low)
    put_eight(digests, to, high << 32 | low)


cdef class Unlocked:
    """See the twin."""

    cdef int run(self) except -1 nogil:
        return 0

    def call(self):
        """Do the work without the GIL."""
        with nogil:
            self.run()
