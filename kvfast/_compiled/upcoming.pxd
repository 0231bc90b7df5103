# C types of kvfast/_core/upcoming.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.key_map cimport KeyMap


cdef long long FAR, NEAR


@cython.final
cdef class Upcoming:
    cdef long long num_blocks, recent_at, step
    cdef KeyMap keys
    cdef int[::1] later, recent

    @cython.locals(before="long long")
    cdef void put(self, long long block) noexcept nogil
    @cython.locals(far="long long")
    cdef void taken(self, long long block, long long step) noexcept nogil
    cdef void fetch(self, long long block) noexcept nogil
