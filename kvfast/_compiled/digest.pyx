"""The compiled twin of kvfast/_core/digest.py: the same classes over C functions.

In Cython's own language: Python has no word for the address of a function.
"""

from libc.string cimport memcpy

from kvfast import _native
from kvfast._core.digest import CONTEXT_BYTES, SIZES_BYTES, Digest as PlainDigest
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
        plain = self.origin
        self.origin = "C functions, found through " + found.origin
        if function == "xxhash_cbor":
            self.xxh3 = <XXH3Function><size_t>addresses[0]
        else:
            self.init = <InitFunction><size_t>addresses[0]
            self.update = <UpdateFunction><size_t>addresses[1]
            self.final = <FinalFunction><size_t>addresses[2]
        for name, length, digest in KNOWN:
            if function.startswith(name) and self.of(bytes(range(length))) != bytes.fromhex(digest)[-self.size:]:
                self.xxh3 = NULL
                self.init = NULL
                self.origin = plain

    def of(self, bytes data):
        """The digest of `data`."""
        cdef unsigned char out[32]
        self.write(data, len(data), out)
        return out[:self.size]

    cdef int write(
        self, const unsigned char *data, Py_ssize_t length, unsigned char *out
    ) except -1 nogil:
        # SHA256_CTX takes 112 bytes in OpenSSL.
        cdef unsigned long long context[32]
        cdef unsigned char whole[32]
        cdef XXH128 both
        cdef int i
        if self.init is not NULL:
            self.init(context)
            self.update(context, data, length)
            self.final(whole, context)
            memcpy(out, whole + 32 - self.size, self.size)
        elif self.xxh3 is not NULL:
            both = self.xxh3(data, length)
            for i in range(8):
                out[i] = (both.high >> (56 - 8 * i)) & 255
                out[8 + i] = (both.low >> (56 - 8 * i)) & 255
        else:
            return self.write_plain(data, length, out)
        return 0

    cdef int write_plain(
        self, const unsigned char *data, Py_ssize_t length, unsigned char *out
    ) except -1 with gil:
        # On its own: a function with a part that takes the GIL takes it once more when it ends.
        cdef bytes digest = self.plain.of(data[:length])
        memcpy(out, <const unsigned char *>digest, self.size)
        return 0

    cdef int begin(
        self, unsigned char *message, Py_ssize_t start, Py_ssize_t end
    ) except -1 nogil:
        if self.init is not NULL:
            self.init(message)
            self.update(message, &message[start], first_part(end - start))
        return 0

    cdef int finish(
        self,
        unsigned char *message,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t at,
        unsigned char *digests,
        Py_ssize_t to,
    ) except -1 nogil:
        cdef unsigned char whole[32]
        if self.init is NULL:
            self.write(&message[start], end - start, &message[at])
        else:
            start += first_part(end - start)
            self.update(message, &message[start], end - start)
            if self.size == 32:  # the next message waits for it
                self.final(&message[at], message)
            else:
                self.final(whole, message)
                memcpy(&message[at], whole + 32 - self.size, self.size)
        memcpy(&digests[to], &message[at], self.size)
        return 0


cdef Py_ssize_t first_part(Py_ssize_t length) noexcept nogil:
    """About half of the chunks of 64 bytes that SHA-256 takes in one by one."""
    return ((length + 64) >> 7) << 6


cdef class Unlocked:
    """See the twin."""

    cdef int run(self) except -1 nogil:
        return 0

    def call(self):
        """Do the work without the GIL."""
        with nogil:
            self.run()
