# C types of kvfast/_core/stats.py.
cimport cython
from kvfast._compiled.request cimport FastRequest


@cython.final
cdef class LookUpStats:
    cdef bint was_reset
    cdef long long requests, queries, hits, again_requests, again_queries, again_hits

    cdef int clear(self) except -1
    cdef void count(self, FastRequest request, long long tokens) noexcept nogil
    cdef object shown(self)
    cdef int copy_from(self, LookUpStats other) except -1
