# C types of kvfast/_core/core.py.
cimport cython
from kvfast._compiled.allocator cimport Allocator
from kvfast._compiled.demand cimport Demand
from kvfast._compiled.event_log cimport EventLog
from kvfast._compiled.hashing cimport Hasher
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.shape cimport Shape
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.turn cimport Turn


cdef class Core:
    cdef readonly Turn turn
    cdef FastRequest used
    cdef readonly object plan
    cdef readonly object config
    cdef readonly Hasher hasher
    cdef readonly int num_groups
    cdef long long max_len
    cdef bint enable_caching
    cdef bint log_stats
    cdef long long watermark
    cdef long long hash_block_size
    cdef EventLog events
    cdef object residency
    cdef Shape shape
    cdef BlockPool pool
    cdef Tables tables
    cdef Lookup lookup
    cdef Allocator allocator
    cdef Demand demand
    cdef dict rows
    cdef list holders
    cdef dict popped
    cdef list reserved
    cdef object no_blocks
    cdef object no_hit
    cdef object not_looked_up
    cdef bint was_reset
    cdef bint is_made
    cdef long long requests
    cdef long long queries
    cdef long long hits
    cdef long long again_requests
    cdef long long again_queries
    cdef long long again_hits

    cdef bint is_ready(self) noexcept
    cdef int check_sound(self) except -1
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef int ask_clock(self) except -1
    cdef int clear_stats(self) except -1
    cdef int set_sinks_aside(self) except -1
    @cython.locals(row="long long")
    cdef int row_of(self, FastRequest request) except -2
    @cython.locals(row="long long")
    cdef int forget_row(self, FastRequest request) except -2
    @cython.locals(row=int)
    cdef int new_row(self, FastRequest request) except -2
    cdef int count_look_up(self, FastRequest request, long long tokens) except -1
    @cython.locals(g=int, n="long long", view="int[::1]", i="long long")
    cdef object blocks_of_hit(self)
    cdef object hit_found(self, long long tokens)
    @cython.locals(total="long long", main="long long", slots="long long", is_running=bint, free="long long", whole="long long", at="long long", needed="long long", demand=Demand)
    cdef int place(self, int row, FastRequest request, long long new, long long lookahead, long long local, long long external, long long skip_at, long long encoder, bint has_hits, bint whole_must_fit, long long reserved, long long watermark) except -2
    @cython.locals(total="long long", g=int)
    cdef object new_blocks(self, int row)
    @cython.locals(at="long long", n="long long", start="long long", view="int[::1]", i="long long")
    cdef object ids_of(self, int row, int g, long long first)
    @cython.locals(row=int)
    cdef object lists_of(self, FastRequest request)
    cdef object snapshot_now(self)
    cdef int copy_into(self, Core copy) except -1
    cdef int adopt(self, snapshot) except -1
