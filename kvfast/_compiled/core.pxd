# C types of kvfast/_core/core.py.
cimport cython
from kvfast._compiled cimport reports
from kvfast._compiled.allocator cimport Allocator
from kvfast._compiled.demand cimport Asked, Demand
from kvfast._compiled.event_log cimport EventLog
from kvfast._compiled.hashing cimport Hasher
from kvfast._compiled.inside cimport Inside
from kvfast._compiled.inside_lookup cimport InsideLookup
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.rows cimport Rows
from kvfast._compiled.shape cimport Shape
from kvfast._compiled.stats cimport LookUpStats
from kvfast._compiled.tables cimport Tables


@cython.final
cdef class Core:
    cdef object plan
    cdef Hasher hasher
    cdef int num_groups
    cdef long long max_len
    cdef bint enable_caching, is_given
    cdef long long num_last, watermark, hash_block_size
    cdef EventLog events
    cdef object residency
    cdef Shape shape
    cdef BlockPool pool
    cdef Tables tables
    cdef Rows rows
    cdef Lookup lookup
    cdef Allocator allocator
    cdef Inside inside
    cdef InsideLookup inside_lookup
    cdef Asked asked
    cdef Demand demand
    cdef LookUpStats stats
    cdef bint log_stats, reports_asked, reports_admitted, counts_admitted, cuts_caching, shows_leading_nulls, counts_common
    cdef dict popped
    cdef list reserved
    cdef object no_blocks, no_hit, not_looked_up

    cdef int ask_clock(self) except -1
    cdef int set_sinks_aside(self) except -1
    @cython.locals(g=int, n="long long", view="int[::1]", i="long long")
    cdef object blocks_of_hit(self)
    cdef Py_ssize_t longest_hit(self, FastRequest request, long long max_tokens) except -1
    cdef object hit_found(self, long long tokens)
    @cython.locals(block="long long")
    cdef int forget_step(self) except -1
    cdef Py_ssize_t watermark_for(self, FastRequest request) except -1
    @cython.locals(local="long long", external="long long", skip_at="long long", total="long long", main="long long", slots="long long", is_running=bint, free="long long", whole="long long", at="long long", needed="long long", demand=Demand, takes_hits=bint)
    cdef int place(self, int row, FastRequest request, Asked asked) except -2
    cdef Py_ssize_t num_needed(self, int row, FastRequest request, Demand demand, bint capped) except -1
    cdef int cache(self, int row, FastRequest request, long long tokens, bint allocates) except -1
    @cython.locals(row=int)
    cdef int release(self, FastRequest request) except -1
    cdef int pop(self, FastRequest request, int row, list ids) except -1
    @cython.locals(pool=BlockPool, block="long long")
    cdef int hold(self, list blocks) except -1
    @cython.locals(keys=KeyMap)
    cdef object facts_of(self, long long block)
    @cython.locals(left="long long")
    cdef int give_back(self, list blocks, dict counts) except -1
    @cython.locals(total="long long", g=int)
    cdef object new_blocks(self, int row)
    cdef object take_block_copies(self)
    @cython.locals(at="long long", i="long long")
    cdef long long first_held(self, int row, int g) noexcept nogil
    @cython.locals(at="long long", start="long long", count="long long")
    cdef long long num_common_prefix(self, int row, int g) noexcept nogil
    @cython.locals(at="long long", n="long long", start="long long", view="int[::1]", i="long long")
    cdef object ids_of(self, int row, int g, long long first)
    @cython.locals(row=int)
    cdef object lists_of(self, FastRequest request)
    cdef object columns(self)
    cdef int copy_into(self, Core copy) except -1
    cdef int adopt(self, columns) except -1


cdef object blocks_of(tuple groups)
cdef object hit_of(blocks, long long length_tokens, uncached_tokens)
