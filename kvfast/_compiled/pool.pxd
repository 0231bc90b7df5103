# C types of kvfast/_core/pool.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled cimport probing_fields as probing
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.event_log cimport EventLog
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.order cimport Order
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.upcoming cimport Upcoming


@cython.final
cdef class BlockPool:
    cdef readonly int num_blocks, num_free
    cdef readonly KeyMap keys
    cdef readonly EventLog events
    cdef readonly object residency
    cdef public bint unhashed_to_front
    cdef bint removed_per_copy
    cdef int[::1] facts
    cdef Upcoming upcoming
    cdef readonly Order order
    cdef bint has_partial
    cdef int[::1] next_entry
    cdef long long num_more, free_more

    cdef long long after(self, long long block) noexcept nogil
    cdef long long before(self, long long block) noexcept nogil
    cdef void link(self, long long left, long long right) noexcept nogil
    @cython.locals(right="long long")
    cdef void put(self, long long left, long long block) noexcept nogil
    cdef void unlink(self, long long block) noexcept nogil
    @cython.locals(block="long long")
    cpdef list first_free(self, long long count, long long left)
    cpdef list queue(self)
    @cython.locals(last="long long", block="long long")
    cpdef set_queue(self, blocks)
    cpdef int refs(self, long long block) noexcept nogil
    cpdef set_refs(self, long long block, int refs)
    @cython.locals(block="long long", base="long long", after="long long")
    cpdef int take(self) except -1
    cdef int allocate(self, Tables tables, long long at, long long count) except -1
    @cython.locals(start="long long", has_keys=int, line="long long", facts="int *", arena="int *", block="long long", step="long long", base="long long", place="long long")
    cdef int allocate_run(self, Tables tables, long long at, long long count) except -1
    @cython.locals(place="long long")
    cdef int evict(self, Tables tables, long long start, long long end) except -1
    @cython.locals(place="long long", block="long long")
    cdef int touch(self, Tables tables, long long start, long long end) except -1
    @cython.locals(left="long long", last="long long", place="long long", block="long long", base="long long")
    cdef void release(self, Tables tables, long long start, long long end) noexcept nogil
    @cython.locals(base="long long")
    cdef long long drop_ref(self, long long block, long long left) noexcept nogil
    cdef int register(self, long long block, FastRequest request, long long number, int group, long long num_hashes) except -1
    cdef int register_at(self, long long home, long long block, FastRequest request, long long number, int group) except -1
    @cython.locals(block="long long")
    cdef int register_run(self, Tables tables, long long start, long long first, long long end, FastRequest request, long long per, int group) except -1
    cdef bint register_partial(self, long long block, FastRequest request, long long number, int group) except -1
    cpdef int covered(self, long long block) noexcept nogil
    cpdef set_covered(self, long long block, int num_hashes)
    cpdef bint is_cached(self, long long block) noexcept nogil
    @cython.locals(entry="long long")
    cdef bint has_key(self, long long block, FastRequest request, long long number, int group) noexcept nogil
    cdef long long block_of(self, long long entry) noexcept nogil
    cdef int forget(self, long long block) except -1
    @cython.locals(entry="long long", after="long long")
    cdef int drop_keys(self, long long block) except -1
    @cython.locals(was_last=bint)
    cdef int drop(self, long long entry) except -1
    @cython.locals(block="long long")
    cpdef reset(self)
    cdef long long more(self, long long entry) noexcept nogil
    cdef void set_more(self, long long entry, long long after) noexcept nogil
    @cython.locals(entry="long long", last="long long")
    cdef Py_ssize_t take_more(self, long long block) except -1
    @cython.locals(entry="long long")
    cpdef list entries_of(self, long long block)
