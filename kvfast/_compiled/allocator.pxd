# C types of kvfast/_core/allocator.py.
cimport cython
from kvfast._compiled cimport kind_fields as kinds
from kvfast._compiled.demand cimport Demand
from kvfast._compiled.event_log cimport EventLog
from kvfast._compiled.kinds cimport never
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.shape cimport Shape
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.zeroing cimport ZeroQueue


@cython.final
cdef class Allocator:
    cdef Shape shape
    cdef BlockPool pool
    cdef Tables tables
    cdef Lookup lookup
    cdef EventLog events
    cdef bint rounds_down
    cdef int[::1] new_from, caches_all
    cdef ZeroQueue to_zero
    cdef readonly list step_hashes

    @cython.locals(g=int)
    cdef bint is_running(self, int row) noexcept nogil
    @cython.locals(g=int)
    cdef bint holds_blocks(self, int row) noexcept nogil
    @cython.locals(g=int, total="long long")
    cdef Py_ssize_t num_needed(self, int row, Demand demand, bint capped) except -1
    @cython.locals(held="long long", has_entry=bint, was_allocated=bint, at="long long", required="long long", skipped="long long", present="long long")
    cdef Py_ssize_t need_of(self, int g, int row, Demand demand, bint capped) except -1
    @cython.locals(kind=int, size="long long")
    cdef long long length_for(self, int g, Demand demand) noexcept nogil
    @cython.locals(count="long long", i="long long", block=int)
    cdef long long num_revived(self, int g, long long first) noexcept nogil
    @cython.locals(num_hits="long long", block=int)
    cdef bint is_too_new(self, int g) except -1
    @cython.locals(required="long long", drafted="long long", num_hits="long long", skipped="long long", length="long long", computed="long long", after_load="long long", need="long long")
    cdef long long need_of_aligned(self, int g, Demand demand, long long held, bint has_entry, bint was_allocated) noexcept nogil
    @cython.locals(g=int, computed="long long", size="long long")
    cdef int take_hits(self, int row, Demand demand, long long priority) except -1
    @cython.locals(at="long long", skipped="long long", length="long long", start="long long", i="long long")
    cdef int take_hits_of(self, int g, int row, long long skip_at, long long priority) except -1
    @cython.locals(g=int)
    cdef int take_new(self, int row, Demand demand) except -1
    @cython.locals(at="long long", missing="long long", end="long long", block=int)
    cdef int extend(self, int g, int row, long long num_blocks) except -1
    cpdef forget_step(self)
    @cython.locals(at="long long", held="long long")
    cdef int take_aligned(self, int g, int row, long long required) except -1
    @cython.locals(_="long long", running="long long", start="long long", i="long long")
    cdef int grow_aligned(self, long long at, long long required, long long held, long long drafted) except -1
    @cython.locals(aligned="long long", g=int, size="long long", end="long long", at="long long", first="long long", full="long long")
    cdef int cache(self, int row, FastRequest request, long long tokens) except -1
    @cython.locals(per="long long", unit="long long", limit="long long", number="long long", held="long long")
    cdef int cache_tail(self, int g, int row, FastRequest request, long long tokens) except -1
    @cython.locals(per="long long", number="long long", at="long long", block=int)
    cdef int cache_checkpoint(self, int g, int row, FastRequest request, long long tokens) except -1
    @cython.locals(per="long long", start="long long", block=int)
    cdef int cache_range(self, int g, long long at, FastRequest request, long long first, long long end) except -1
    @cython.locals(per="long long", stored=list, i="long long", block=int)
    cdef int cache_each(self, int g, long long start, FastRequest request, long long first, long long end) except -1
    @cython.locals(per="long long", i="long long", block=int)
    cdef int note_step(self, int g, long long start, long long first, long long end) except -1
    @cython.locals(at="long long", index="long long", block=int, is_new=bint)
    cdef bint cache_partial(self, int row, FastRequest request, int g, long long number) except -1
    @cython.locals(g=int, verified="long long", end="long long", at="long long", kept="long long")
    cdef int remove_skipped(self, int row, long long computed, long long prompt) except -1
    @cython.locals(passed="long long", start="long long", i="long long")
    cdef int remove_before(self, int g, long long at, long long kept, long long end) except -1
    @cython.locals(g=int, at="long long", start="long long")
    cdef int free(self, int row) except -1
