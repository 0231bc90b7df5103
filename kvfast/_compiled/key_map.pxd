# C types of kvfast/_core/key_map.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled cimport probing_fields as probing
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables


cdef long long MIX_MASK, GROUP_FACTOR


@cython.final
cdef class KeyMap:
    cdef readonly long long width
    cdef readonly int num_blocks, num_entries
    cdef readonly bint has_strays
    cdef long long slot_mask
    cdef int[::1] facts
    cdef unsigned long long[::1] words
    cdef long long[::1] slots, homes

    cpdef lay_out(self, facts)
    @cython.locals(num_slots="long long")
    cpdef set_num_slots(self, long long num_entries)
    @cython.locals(entry="long long")
    cpdef clear(self)
    cpdef grow(self, long long num_entries)
    cdef long long mix(self, unsigned long long word, long long group) noexcept nogil
    @cython.locals(place="long long", mixed="long long")
    cdef long long home_of(self, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(turned="long long")
    cdef long long home_in(self, long long mixed, long long place) noexcept nogil
    @cython.locals(words="unsigned long long *", homes="long long *", width="long long", has_strays=bint, count="long long", number="long long", line="long long", mixed="long long", i="long long")
    cdef void find_homes(self, FastRequest request, long long hashes_per_block, int group, long long first, long long end) noexcept nogil
    cdef void fetch_slots(self, long long home) noexcept nogil
    @cython.locals(slot="long long")
    cdef long long likely_entry(self, long long home, unsigned long long word, int group) noexcept nogil
    cdef long long stray_home(self, unsigned long long word, int group) noexcept nogil
    cdef long long steps_between(self, long long start, long long end) noexcept nogil
    @cython.locals(tag="long long", i="long long", slot="long long", entry="long long")
    cdef long long place_from(self, long long home, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(home="long long", entry="long long")
    cdef long long find(self, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(per="long long", end="long long", i="long long", number="long long", entry="long long", word="unsigned long long")
    cdef long long find_run(self, FastRequest request, long long hashes_per_block, int group, long long first, long long limit, int *out, long long base) noexcept nogil
    @cython.locals(at="long long", mine="long long", k="long long", different="unsigned long long")
    cdef bint carries(self, long long entry, FastRequest request, long long number, int group) noexcept nogil
    cpdef bytes hash_of(self, long long entry)
    cpdef int group_of(self, long long entry)
    cdef bint is_added(self, long long entry) noexcept nogil
    @cython.locals(i="long long")
    cdef long long slot_of(self, long long entry) noexcept nogil
    @cython.locals(home="long long")
    cdef long long read_ahead(self, FastRequest request, long long number) noexcept nogil
    cdef void add_words(self, long long entry, unsigned long long[::1] words, long long at, int group, long long head) noexcept nogil
    cdef void add(self, long long entry, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(place="long long", tag="long long")
    cdef void add_at(self, long long home, long long entry, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(place="long long", head="long long")
    cdef void add_beside(self, long long home, long long entry, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(at="long long", mine="long long")
    cdef void write_key(self, long long entry, FastRequest request, long long number, int group) noexcept nogil
    @cython.locals(per="long long", facts="int *", arena="int *", homes="long long *", until="long long", i="long long", block="long long")
    cdef long long add_run(self, Tables tables, long long start, long long first, long long end, FastRequest request, long long hashes_per_block, int group) noexcept nogil
    @cython.locals(mine="long long")
    cdef void make_ring(self, long long entry) noexcept nogil
    @cython.locals(mine="long long", first="long long", last="long long")
    cdef void join(self, long long entry, long long head) noexcept nogil
    @cython.locals(steps="long long", tag="long long")
    cdef void put_slot(self, long long entry, long long place, long long home) noexcept nogil
    @cython.locals(home="long long", i="long long")
    cdef void fill_slot(self, long long entry) noexcept nogil
    @cython.locals(mine="long long", after="long long", before="long long", i="long long")
    cdef bint remove(self, long long entry) noexcept nogil
    @cython.locals(facts="int *", arena="int *", slots="long long *", mask="long long", i="long long", block="long long", mine="long long", after="long long", place="long long")
    cdef void remove_run(self, Tables tables, long long start, long long end) noexcept nogil
    @cython.locals(i="long long", moved="long long", back="long long", steps="long long", entry="long long", home="long long")
    cdef void empty_slot(self, long long hole) noexcept nogil
