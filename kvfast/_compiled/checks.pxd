# C types of kvfast/_core/checks.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled.core cimport Core
from kvfast._compiled.hashing cimport Hasher
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.shape cimport Shape


cdef int COUNT_BITS


@cython.final
cdef class Checks:
    cdef Core core
    cdef int num_groups
    cdef Shape shape
    cdef BlockPool pool
    cdef Lookup lookup

    @cython.locals(small=Py_ssize_t, count="long long")
    cdef Py_ssize_t counted(self, str field, object value) except -1
    cdef int check_flag(self, str field, object value) except -1
    @cython.locals(mine=FastRequest)
    cdef FastRequest own(self, object request)
    @cython.locals(theirs=Hasher, ours=Hasher)
    cdef bint can_use_hashes(self, FastRequest request) except -1
    cdef int check_scheduling(self, FastRequest request) except -1
    cdef int check_junction(self, FastRequest request) except -1
    @cython.locals(computed="long long")
    cdef Py_ssize_t computed_of(self, FastRequest request) except -1
    @cython.locals(g=int, slots="long long", first="long long")
    cdef int check_has_slots(self, int row, long long prompt, long long computed) except -1
    @cython.locals(groups=tuple, hits=list)
    cdef list copied_hits(self, object blocks)
    @cython.locals(total="long long", g=int)
    cdef Py_ssize_t offer(self, list hits) except -1
    @cython.locals(base="long long", length="long long", num_blocks=int, i="long long", block=int, view="int[::1]")
    cdef Py_ssize_t offer_ids(self, int g, object ids) except -1
    cdef object checked_sequence(self, str field, object values)
    cdef int checked_block(self, object block) except -1
    cdef list checked_blocks(self, str field, object block_ids)
    @cython.locals(g=int, num_hits="long long", size="long long", skipped="long long", covered="long long", longest="long long")
    cdef int check_hits(self, FastRequest request, long long new_computed, long long external, long long skip_at) except -1
    @cython.locals(per="long long", i="long long", block=int, has_hash=bint)
    cdef int check_whole(self, FastRequest request, int g, long long end, long long skipped) except -1
    @cython.locals(is_fine=bint)
    cdef bint may_end_inside(self, int g, long long tokens) noexcept nogil
    @cython.locals(num_hits="long long", whole="long long", block=int)
    cdef int check_inside(self, FastRequest request, int g, long long new_computed, long long external, long long skipped) except -1
    @cython.locals(block=int, per="long long", unit="long long", last="long long", number="long long")
    cdef bint covers_end(self, FastRequest request, int g, long long index, long long tokens) noexcept nogil
    cdef int check_continues(self, int row, long long num_hits, long long new_computed, long long external) except -1
