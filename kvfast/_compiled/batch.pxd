# C types of kvfast/_core/batch.py.
cimport cython
from kvfast._compiled.batch_calls cimport BatchCalls
from kvfast._compiled.manager cimport FastManager


@cython.final
cdef class FastBatch:
    cdef FastManager inner
    cdef object shown
    cdef BatchCalls calls
    cdef bint is_made

    cdef bint is_ready(self) noexcept
    cdef int enter(self) except -1
