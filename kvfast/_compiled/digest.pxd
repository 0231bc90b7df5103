# What hashing.pxd and request.pxd may use of digest.pyx.
cimport cython

cdef struct XXH128:
    unsigned long long low
    unsigned long long high

ctypedef int (*InitFunction)(void *) noexcept nogil
ctypedef int (*UpdateFunction)(void *, const void *, size_t) noexcept nogil
ctypedef XXH128 (*XXH3Function)(const void *, size_t) noexcept nogil


@cython.final
cdef class Digest:
    cdef readonly int size
    cdef readonly str origin
    cdef object plain
    cdef unsigned char initial[32]
    cdef UpdateFunction update
    cdef XXH3Function xxh3

    cdef adopt(self, str function, object found)
    cdef int write(
        self, const unsigned char *data, Py_ssize_t length, unsigned char *out
    ) except -1 nogil
    cdef int write_plain(
        self, const unsigned char *data, Py_ssize_t length, unsigned char *out
    ) except -1 with gil
    cdef int put(
        self,
        unsigned char *message,
        Py_ssize_t own,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t at,
        unsigned char *digests,
        Py_ssize_t to,
    ) except -1 nogil


cdef class Unlocked:
    cdef int run(self) except -1 nogil
