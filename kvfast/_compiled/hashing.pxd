# C types of kvfast/_core/hashing.py. Nothing here checks an index: FastRequest has made the room.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled.digest cimport Digest, Unlocked

cdef int CONTEXT_BYTES, PADDING_BYTES, PLACES, NUM_ROOMS, FRAME_START, PARENT, UINT, NEGATIVE, BYTES, TEXT, ARRAY, ARRAY_OF_3, UINT_OF_8_BYTES
cdef bytes NULL


@cython.locals(
    one="unsigned long long",
    two="unsigned long long",
    four="unsigned long long",
    eight="unsigned long long",
    num_bytes="unsigned long long",
    left="unsigned long long",
)
cdef Py_ssize_t put_head(
    unsigned char *message, Py_ssize_t at, int major, unsigned long long value
) noexcept nogil

cpdef bytes encode_extra_keys(keys)

@cython.locals(data=bytes)
cpdef bytes encode_text(str text)

@cython.locals(power=int)
cdef bytes head(int major, value)


@cython.final
cdef class Message:
    cdef unsigned char[::1] data
    cdef long long size_bytes

    cdef int make_room(self, long long size_bytes) except -1


cdef class Hasher:
    cdef readonly str function
    cdef readonly Digest digest
    cdef readonly int size, words_per_digest
    cdef readonly long long ahead
    cdef readonly bytes none_hash
    cdef bint parent_is_int, tells_length
    cdef Py_ssize_t start
    cdef readonly bint tags, is_given
    cdef bint is_made
    cdef const unsigned char[::1] first_parent, no_extra
    cdef list messages

    cdef bint is_ready(self) noexcept
    cdef int check_made(self) except -1
    cpdef set_none_hash(self, none_hash)
    @cython.final
    @cython.locals(text=Py_ssize_t)
    cdef Py_ssize_t room_bytes(
        self, Py_ssize_t block_size, Py_ssize_t extra_bytes
    ) noexcept nogil
    cdef Py_ssize_t message_bytes(self, Py_ssize_t block_size, Py_ssize_t extra_bytes)

    @cython.locals(message=Message)
    cdef Message take_message(self, long long size_bytes)

    @cython.locals(
        size=int,
        at=Py_ssize_t,
        own=Py_ssize_t,
        here=Py_ssize_t,
        there=Py_ssize_t,
        room_bytes=Py_ssize_t,
        first_parent="const unsigned char *",
        body=Py_ssize_t,
        n=Py_ssize_t,
        start=Py_ssize_t,
        block=Py_ssize_t,
    )
    cdef int hash_blocks(
        self,
        long long *tokens,
        Py_ssize_t first,
        Py_ssize_t end,
        Py_ssize_t block_size,
        unsigned char *digests,
        const unsigned char *extra,
        Py_ssize_t extra_bytes,
        unsigned char *message,
    ) except -1 nogil

    @cython.final
    @cython.locals(last=Py_ssize_t, n=Py_ssize_t, length=Py_ssize_t)
    cdef inline Py_ssize_t put_body(
        self,
        unsigned char *message,
        Py_ssize_t place,
        Py_ssize_t body,
        long long *tokens,
        Py_ssize_t block,
        Py_ssize_t block_size,
        const unsigned char *extra,
        Py_ssize_t extra_bytes,
    ) noexcept nogil

    @cython.locals(parent=Py_ssize_t, length=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t put_frame(
        self, unsigned char *message, Py_ssize_t place, Py_ssize_t block_size
    ) noexcept nogil

    @cython.locals(i=Py_ssize_t, length=Py_ssize_t)
    cdef Py_ssize_t put_tokens(
        self,
        unsigned char *message,
        Py_ssize_t at,
        long long *tokens,
        Py_ssize_t first,
        Py_ssize_t end,
    ) noexcept nogil

    @cython.final
    @cython.locals(parent="unsigned long long", length=Py_ssize_t, start=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t shorten_parent(
        self, unsigned char *message, Py_ssize_t place
    ) noexcept nogil


cdef class HashJob(Unlocked):
    cdef Hasher hasher
    cdef long long *tokens
    cdef Py_ssize_t first, end, block_size, extra_bytes
    cdef unsigned char *digests
    cdef const unsigned char *extra
    cdef unsigned char *message

    cdef void prepare(
        self,
        long long *tokens,
        Py_ssize_t first,
        Py_ssize_t end,
        Py_ssize_t block_size,
        unsigned char *digests,
        const unsigned char *extra,
        Py_ssize_t extra_bytes,
        unsigned char *message,
    ) noexcept
    cdef int run(self) except -1 nogil
