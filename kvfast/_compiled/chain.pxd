# C types of kvfast/_core/chain.py.
cimport cython
from kvfast._compiled.hashing cimport Hasher, HashJob, encode_extra_keys
from kvfast._compiled cimport objects, token_copy

cdef int PARENT, PICKLE_START, FRAME_START, PROTOCOL, FRAME, SHORT_BYTES, MEMOIZE, MARK, ONE_BYTE
cdef int PICKLE_TOKEN_BITS, FEWEST_IN_PICKLE, MOST_IN_PICKLE
cdef long long UNLOCKED


cdef class PickledHasher(Hasher):
    @cython.locals(
        size=int,
        at=Py_ssize_t,
        body=Py_ssize_t,
        n=Py_ssize_t,
        i=Py_ssize_t,
        block=Py_ssize_t,
        token="unsigned long long",
        two=int,
        four=int,
    )
    cdef int hash_blocks(
        self,
        long long[::1] tokens,
        Py_ssize_t first,
        Py_ssize_t end,
        Py_ssize_t block_size,
        unsigned char[::1] digests,
        const unsigned char[::1] extra,
        unsigned char[::1] message,
    ) except -1 nogil

    @cython.locals(i=int)
    cdef Py_ssize_t put_frame(self, unsigned char[::1] message) noexcept nogil


@cython.final
cdef class BlockChain:
    cdef Hasher hasher
    cdef long long block_size, room_tokens, room_extra
    cdef bint is_pickled, is_used
    cdef long long[::1] copied
    cdef unsigned char[::1] message

    @cython.locals(data=bytes, start=Py_ssize_t)
    cpdef bytes spelled(self, keys)
    cpdef list hashes(self, list tokens, bytes parent, bytes extra)
    @cython.locals(
        size=Py_ssize_t,
        num_tokens=Py_ssize_t,
        end=Py_ssize_t,
        made=bytearray,
        digests="unsigned char[::1]",
        spelled="const unsigned char[::1]",
    )
    cdef list hash_all(self, list tokens, bytes parent, bytes extra)
    @cython.locals(room="long long")
    cdef int make_room(self, long long num_tokens, long long extra_bytes) except -1
    @cython.locals(start=Py_ssize_t, seen="unsigned long long", i=Py_ssize_t)
    cdef bint copy_in(self, list tokens, Py_ssize_t num_tokens) except -1
