# C types of kvfast/_core/inside_lookup.py.
cimport cython
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.shape cimport Shape


@cython.final
cdef class InsideLookup:
    cdef Shape shape
    cdef BlockPool pool
    cdef Lookup lookup
    cdef long long unit
    cdef long long[::1] found_tokens

    @cython.locals(m=int, g=int, entry=int)
    cdef bint find(self, int a, FastRequest request, long long number, long long index) noexcept nogil
    cdef int first_of(self, int a) noexcept nogil
    @cython.locals(g=int)
    cdef long long look_up(self, int a, FastRequest request, long long tokens, bint drop) noexcept nogil
    @cython.locals(g=int, size="long long", per="long long", end="long long", length="long long", number="long long")
    cdef long long look_up_full(self, int a, FastRequest request, long long tokens, bint drop) noexcept nogil
    @cython.locals(per="long long", number="long long", index="long long")
    cdef long long look_up_states(self, int a, FastRequest request, long long tokens) noexcept nogil
    @cython.locals(lookup=Lookup, num=int, a=int, one_round=bint, length="long long", before="long long", tokens="long long")
    cdef Py_ssize_t longest_hit(self, FastRequest request, long long max_tokens) except -1
    cdef void spread(self, int a, long long tokens) noexcept nogil
    @cython.locals(is_unverified=bint, drop=bint, within="long long", answer="long long", b=int)
    cdef long long ask(self, int a, FastRequest request, long long length, long long max_tokens) noexcept nogil
    cdef long long margin(self, int a) noexcept nogil
    @cython.locals(lookup=Lookup, a=int)
    cdef int hits_per_group(self, FastRequest request, long long max_tokens) except -1
    @cython.locals(a=int, m=int)
    cdef long long tokens_of(self, int g) noexcept nogil
