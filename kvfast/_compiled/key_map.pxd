# C types of kvfast/_core/key_map.py.
cimport cython
from kvfast._compiled.request cimport FastRequest


cdef int ENTRY_BITS
cdef long long ENTRY_MASK
cdef long long MIX_MASK
cdef long long RUN_BLOCKS
cdef long long GROUP_FACTOR


cdef class KeyMap:
    cdef readonly long long width
    cdef readonly int num_blocks
    cdef readonly int num_entries
    cdef readonly int num_keys
    cdef long long slot_mask
    cdef unsigned long long[::1] words
    cdef int[::1] groups
    cdef int[::1] dup_next
    cdef int[::1] dup_prev
    cdef long long[::1] slots

    @cython.locals(num_slots="long long")
    cpdef set_num_slots(self, long long num_entries)
    cpdef clear(self)
    cpdef grow(self, long long num_entries)
    cdef long long mix(self, unsigned long long word, long long group) noexcept nogil
    @cython.locals(at="long long", mixed="long long", i="long long", slot="long long", entry=int)
    cdef int find(self, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(per="long long", end="long long", i="long long", word="unsigned long long", number="long long", entry=int)
    cdef long long find_run(self, FastRequest request, long long hashes_per_block, int group, long long first, long long limit, int[::1] out, long long base) noexcept nogil
    @cython.locals(at="long long", mine="long long", k=int)
    cdef bint carries(self, int entry, FastRequest request, long long number, int group) noexcept nogil
    cpdef bytes hash_of(self, int entry)
    cpdef int group_of(self, int entry)
    cpdef list heads(self)
    @cython.locals(entry=int)
    cpdef list ring_of(self, int head)
    cpdef add_hash(self, int entry, bytes block_hash, int group, int head)
    cdef bint is_added(self, int entry) noexcept nogil
    @cython.locals(head=int, at="long long", mine="long long", k=int)
    cdef void add(self, int entry, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(last=int)
    cdef void link(self, int entry, int head) noexcept nogil
    cdef long long mixed_of(self, int entry) noexcept nogil
    @cython.locals(i="long long")
    cdef void fill_slot(self, long long slot) noexcept nogil
    @cython.locals(mixed="long long", after=int, before=int, own_slot="long long", i="long long")
    cdef bint remove(self, int entry) noexcept nogil
    @cython.locals(i="long long", hole="long long", moved="long long", home="long long")
    cdef void empty_slot(self, long long slot) noexcept nogil
