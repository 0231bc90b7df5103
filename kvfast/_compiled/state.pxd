# C types of kvfast/_core/state.py.
cimport cython
from kvfast._compiled.allocator cimport Allocator
from kvfast._compiled.inside cimport Inside
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.tables cimport Tables


@cython.final
cdef class StateView:
    cdef BlockPool pool
    cdef Tables tables
    cdef Allocator allocator
    cdef Inside inside
    cdef int num_groups

    @cython.locals(g=int, at="long long")
    cpdef object request_state(self, int row)
    @cython.locals(g=int, block=int)
    cpdef dict restore_rest(self, object snapshot)
    @cython.locals(g=int, at="long long", block=int)
    cpdef int restore_row(self, object state) except -1
