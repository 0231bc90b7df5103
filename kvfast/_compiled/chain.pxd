# C types of kvfast/_core/chain.py.
cimport cython
from kvfast._compiled.digest cimport Unlocked
from kvfast._compiled.hashing cimport Hasher, encode_extra_keys
from kvfast._compiled cimport objects, token_copy

cdef int PARENT, PICKLE_START, PROTOCOL, FRAME, SHORT_BYTES, MEMOIZE, MARK, ONE_BYTE
cdef int PICKLE_TOKEN_BITS, FEWEST_IN_PICKLE, MOST_IN_PICKLE
cdef long long UNLOCKED


cdef class PickledHasher(Hasher):
    @cython.locals(body=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t put_frame(
        self, unsigned char *message, Py_ssize_t place, Py_ssize_t block_size
    ) noexcept nogil

    @cython.locals(
        i=Py_ssize_t,
        token="unsigned long long",
        two="unsigned long long",
        four="unsigned long long",
    )
    cdef Py_ssize_t put_tokens(
        self,
        unsigned char *message,
        Py_ssize_t at,
        long long *tokens,
        Py_ssize_t first,
        Py_ssize_t end,
    ) noexcept nogil


cdef class BlockChain(Unlocked):
    cdef Hasher hasher
    cdef long long block_size, room_tokens, room_extra, end
    cdef bint is_pickled, is_used
    cdef bytes extra
    cdef long long[::1] copied
    cdef unsigned long long[::1] digests
    cdef unsigned char[::1] message
    cdef const unsigned char[::1] spelled_extra

    @cython.locals(data=bytes, start=Py_ssize_t)
    cpdef bytes spelled(self, keys)
    cpdef list hashes(self, list tokens, bytes parent, bytes extra)
    @cython.locals(size=Py_ssize_t, num_tokens=Py_ssize_t, i=Py_ssize_t, made="unsigned char *")
    cdef list hash_all(self, list tokens, bytes parent, bytes extra)
    cdef int run(self) except -1 nogil
    @cython.locals(room="long long", num_hashes="long long")
    cdef int make_room(self, long long num_tokens, bytes extra) except -1
    @cython.locals(start=Py_ssize_t, seen="unsigned long long", i=Py_ssize_t)
    cdef bint copy_in(self, list tokens, Py_ssize_t num_tokens) except -1
