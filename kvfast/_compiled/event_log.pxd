# C types of kvfast/_core/event_log.py.
cimport cython
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.request cimport FastRequest


@cython.final
cdef class EventLog:
    cdef list facts

    cdef int stored(self, FastRequest request, int group, int hashes_per_block, long long first, long long end, list blocks) except -1
    cdef int hit(self, FastRequest request, int group, int hashes_per_block, long long first, long long end, list blocks) except -1
    cdef int removed(self, KeyMap keys, int entry) except -1
    cpdef cleared(self)


@cython.locals(i="long long")
cdef tuple fact_of(FastRequest request, int group, long long per, long long first, long long end, list blocks)
