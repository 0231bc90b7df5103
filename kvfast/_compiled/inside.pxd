# C types of kvfast/_core/inside.py.
cimport cython
from kvfast._compiled.allocator cimport Allocator
from kvfast._compiled.demand cimport Demand
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled cimport moving
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.shape cimport Shape
from kvfast._compiled.tables cimport Tables


@cython.final
cdef class Inside:
    cdef Allocator allocator
    cdef Shape shape
    cdef BlockPool pool
    cdef Tables tables
    cdef Lookup lookup
    cdef long long unit
    cdef int num_groups
    cdef long long end
    cdef bint is_whole
    cdef long long[::1] export_step, entry_of, inner, column, handed
    cdef int[::1] copied
    cdef readonly list pairs
    cdef readonly dict written

    @cython.locals(g=int, total="long long")
    cdef Py_ssize_t num_needed(self, int row, FastRequest request, Demand demand, bint capped) except -1
    @cython.locals(ends_inside=bint, need="long long")
    cdef Py_ssize_t need_of(self, int g, int row, FastRequest request, Demand demand, bint capped) except -1
    cdef bint has_entry(self, int g, int row) noexcept nogil
    @cython.locals(place="long long", before="long long")
    cdef bint is_unwritten(self, int g, Demand demand) except -1
    @cython.locals(held="long long", was_allocated=bint, missing="long long", need="long long", most="long long")
    cdef Py_ssize_t need_of_aligned(self, int g, int row, FastRequest request, Demand demand, bint ends_inside) except -1
    @cython.locals(size="long long")
    cdef long long entry_hit(self, int g, Demand demand) noexcept nogil
    @cython.locals(size="long long", index="long long", at="long long", block=int)
    cdef long long moved_entry(self, int g, int row, Demand demand) noexcept nogil
    cdef long long last_inner(self, long long tokens) noexcept nogil
    @cython.locals(step="long long", start="long long", end="long long", tokens="long long", size="long long", column="long long", held="long long", at="long long")
    cdef long long inner_state(self, int g, int row, FastRequest request, Demand demand) noexcept nogil
    @cython.locals(g=int, at="long long")
    cdef int take(self, int row, FastRequest request, Demand demand, bint takes_hits) except -1
    @cython.locals(at="long long", entry="long long", required="long long", held="long long")
    cdef int take_aligned(self, int g, int row, FastRequest request, Demand demand) except -1
    @cython.locals(_="long long", running="long long", start="long long", i="long long")
    cdef int grow(self, long long at, long long required, long long held, long long drafted, long long inner) except -1
    @cython.locals(size="long long", start="long long", verified="long long")
    cdef int pass_over(self, int g, long long at, FastRequest request, Demand demand) except -1
    @cython.locals(start="long long", length="long long", i="long long")
    cdef int note_written(self, int g, long long at, long long local, long long first) except -1
    @cython.locals(block=int)
    cdef int fresh(self, int g, long long at) except -1
    @cython.locals(block=int, place="long long")
    cdef int copy_shared(self, int g, long long at) except -1
    @cython.locals(block=int, source=int, entry="long long")
    cdef int move_keys(self, int g, long long at, long long index) except -1
    @cython.locals(g=int)
    cdef int put_first(self, list taken) except -1
    @cython.locals(taken=list)
    cdef object take_copies(self, dict popped)
    @cython.locals(g=int, at="long long", given="long long", end="long long", first="long long", told="long long", inner="long long", last="long long")
    cdef int cache(self, int row, FastRequest request, long long tokens, bint allocates) except -1
    @cython.locals(per="long long", size="long long", start="long long", tail="long long", stored=list, i="long long", first="long long", block=int, tokens="long long")
    cdef int cache_states(self, int g, long long at, FastRequest request, long long told, long long end, long long inner) except -1
    @cython.locals(is_kept=bint, block=int)
    cdef int cache_inner(self, int g, long long at, FastRequest request, long long tokens) except -1
    @cython.locals(size="long long", is_tail=bint)
    cdef int cache_tail(self, int g, long long at, FastRequest request, long long tokens) except -1
    @cython.locals(block=int, is_new=bint)
    cdef bint cache_at(self, int g, long long at, FastRequest request, long long index, long long number) except -1
