# C types of kvfast/_core/zeroing.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled.tables cimport Tables

cdef long long GROUP_BASE


@cython.final
cdef class ZeroQueue:
    cdef long long[::1] to_zero
    cdef long long size

    cdef int make_room(self, long long count) except -1
    cdef int add(self, int g, int block) except -1
    @cython.locals(at="long long", base="long long", to_zero="long long *", arena="int *", place="long long")
    cdef int add_run(self, int g, Tables tables, long long start, long long end) except -1
    @cython.locals(i="long long", entry="long long")
    cpdef list lists(self, int num_groups)
