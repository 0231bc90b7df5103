# C types of kvfast/_core/pool.py.
cimport cython
from kvfast._compiled.event_log cimport EventLog
from kvfast._compiled.free_queue cimport FreeQueue
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.request cimport FastRequest


cdef class BlockPool:
    cdef readonly int num_blocks
    cdef readonly FreeQueue queue
    cdef readonly KeyMap keys
    cdef readonly EventLog events
    cdef readonly object residency
    cdef bint unhashed_to_front
    cdef bint removed_per_copy
    cdef int[::1] refs
    cdef int[::1] covered
    cdef bint has_partial
    cdef int[::1] more
    cdef int[::1] more_next
    cdef int[::1] owner
    cdef int num_more
    cdef int free_more

    @cython.locals(block=int)
    cdef int allocate(self) except -1
    cdef int touch(self, int block) except -1
    cdef int release(self, int block, int left) noexcept nogil
    cdef int register(self, int block, FastRequest request, long long number, int group, int num_hashes) except -1
    @cython.locals(entry=int)
    cdef bint register_partial(self, int block, FastRequest request, long long number, int group) except -1
    cpdef bint is_cached(self, int block)
    @cython.locals(entry=int)
    cdef bint has_key(self, int block, FastRequest request, long long number, int group) noexcept nogil
    cdef int block_of(self, int entry) noexcept nogil
    cdef int forget(self, int block) except -1
    @cython.locals(entry=int, after=int)
    cdef int drop_keys(self, int block) except -1
    @cython.locals(was_last=bint)
    cdef int drop(self, int entry) except -1
    cpdef reset(self)
    @cython.locals(entry=int, last=int, room="long long")
    cdef int take_more(self, int block) except -1
    @cython.locals(entry=int)
    cpdef list entries_of(self, int block)
