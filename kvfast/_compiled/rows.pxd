# C types of kvfast/_core/rows.py.
cimport cython
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables


@cython.final
cdef class Rows:
    cdef Tables tables
    cdef dict by_id
    cdef list holders

    @cython.locals(row="long long")
    cdef int of(self, FastRequest request) except -2
    @cython.locals(row=int)
    cdef int add(self, FastRequest request) except -2
    @cython.locals(row="long long")
    cdef int forget(self, FastRequest request) except -2
