# C types of kvfast/_core/lookup.py.
cimport cython
from kvfast._compiled cimport kind_fields as kinds
from kvfast._compiled cimport objects
from kvfast._compiled.kinds cimport never
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.shape cimport Shape


@cython.final
cdef class Lookup:
    cdef Shape shape
    cdef BlockPool pool
    cdef long long stride
    cdef int[::1] hits
    cdef long long[::1] hit_blocks
    cdef readonly long long longest_tokens
    cdef long long[::1] found_blocks
    cdef int[::1] is_verified

    @cython.locals(stride="long long")
    cdef int make_room(self, long long num_blocks) except -1
    @cython.locals(g=int)
    cdef void clear(self) noexcept nogil
    @cython.locals(m=int, g=int, number="long long", entry=int)
    cdef bint find_in_all(self, int a, FastRequest request, long long index) noexcept nogil
    @cython.locals(m=int, base="long long", i="long long")
    cdef void put_null(self, int a, long long end) noexcept nogil
    @cython.locals(g=int, limit="long long", kind=int)
    cdef long long look_up(self, int a, FastRequest request, long long tokens, bint drop, long long per) noexcept nogil
    @cython.locals(m=int, g=int, per="long long", base="long long", end="long long", hits="int *")
    cdef long long run_from(self, int a, FastRequest request, long long first, long long limit) noexcept nogil
    @cython.locals(end="long long")
    cdef long long look_up_full(self, int a, FastRequest request, long long limit, bint drop, long long per) noexcept nogil
    @cython.locals(g=int, dropped="long long", need="long long", end="long long", start="long long")
    cdef long long look_up_sliding(self, int a, FastRequest request, long long limit, bint drop, long long per) noexcept nogil
    cdef long long short_run(self, long long length, long long dropped, long long per) noexcept nogil
    @cython.locals(g=int, first="long long", end="long long", size="long long", reach="long long")
    cdef long long look_up_chunked(self, int a, FastRequest request, long long tokens, long long limit) noexcept nogil
    @cython.locals(end="long long")
    cdef long long look_up_mamba(self, int a, FastRequest request, long long limit, long long per) noexcept nogil
    @cython.locals(m=int)
    cdef void spread(self, int a, long long num_blocks) noexcept nogil
    cdef long long block_size_of(self, int a) noexcept nogil
    cdef bint drops(self, int a) noexcept nogil
    cdef bint is_full(self, int a) noexcept nogil
    cdef bint is_mamba(self, int a) noexcept nogil
    @cython.locals(size="long long", num_blocks="long long")
    cdef Py_ssize_t longest_hit(self, FastRequest request, long long max_tokens) except -1
    @cython.locals(num=int, a=int, one_round=bint, length="long long", before="long long", num_blocks="long long")
    cdef Py_ssize_t agreed_hit(self, FastRequest request, long long max_tokens) except -1
    @cython.locals(size="long long", is_unverified=bint, drop=bint, within="long long", num_blocks="long long", answer="long long", b=int)
    cdef long long ask(self, int a, FastRequest request, long long length, long long max_tokens) noexcept nogil
    @cython.locals(g=int)
    cdef long long farthest(self, int a, FastRequest request, long long max_tokens) noexcept nogil
    @cython.locals(a=int, per="long long", num_blocks="long long")
    cdef int hits_per_group(self, FastRequest request, long long max_tokens) except -1
