# C types of kvfast/_core/event_log.py.
cimport cython
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.request cimport FastRequest


@cython.final
cdef class EventLog:
    cdef list facts

    @cython.locals(per="long long", i="long long")
    cdef int stored(self, FastRequest request, int group, int hashes_per_block, long long first, long long end, list blocks) except -1
    cdef int removed(self, KeyMap keys, int entry) except -1
    cpdef cleared(self)
