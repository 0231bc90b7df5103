# C types of kvfast/_core/checked.py.
cimport cython
from kvfast._compiled.core cimport Core
from kvfast._compiled.hashing cimport Hasher
from kvfast._compiled.request cimport FastRequest


cdef int COUNT_BITS


cdef class Checked(Core):
    @cython.locals(count="long long")
    cdef long long counted(self, str field, object value) except -1
    cdef int check_flag(self, str field, object value) except -1
    @cython.locals(mine=FastRequest)
    cdef FastRequest own(self, object request)
    @cython.locals(mine=FastRequest)
    cdef FastRequest claim(self, object request)
    @cython.locals(theirs=Hasher)
    cdef bint can_use_hashes(self, FastRequest request) except -1
    cdef int check_scheduling(self, FastRequest request) except -1
    @cython.locals(computed="long long")
    cdef long long computed_of(self, FastRequest request) except -1
    cdef long long watermark_for(self, FastRequest request) except -1
    @cython.locals(g=int, slots="long long")
    cdef int check_has_slots(self, int row, long long computed) except -1
    @cython.locals(groups=tuple, hits=list)
    cdef list copied_hits(self, object blocks)
    @cython.locals(total="long long", g=int)
    cdef long long offer(self, list hits) except -1
    @cython.locals(base="long long", length="long long", num_blocks=int, i="long long", block=int, view="int[::1]")
    cdef long long offer_ids(self, int g, object ids) except -1
    cdef object checked_sequence(self, str field, object values)
    cdef int checked_block(self, object block) except -1
    cdef list checked_blocks(self, str field, object block_ids)
    @cython.locals(g=int, num_hits="long long", size="long long", per="long long", skipped="long long", i="long long", block=int, covered="long long", longest="long long", has_hash=bint)
    cdef int check_hits(self, FastRequest request, long long new_computed, long long external, long long skip_at) except -1
    cdef int check_continues(self, int row, long long num_hits, long long new_computed, long long external) except -1
