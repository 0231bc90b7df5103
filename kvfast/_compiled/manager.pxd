# C types of kvfast/_core/manager.py.
cimport cython
from kvfast._compiled.checked cimport Checked
from kvfast._compiled.request cimport FastRequest


cdef class FastManager(Checked):
    @cython.locals(mine=FastRequest, tokens="long long")
    cpdef object get_computed_blocks(self, request)
    @cython.locals(computed="long long", row=int, num_hits="long long", local="long long", most="long long", skip_at="long long", watermark="long long", verified="long long")
    cdef object grant(self, FastRequest request, object blocks, long long new, long long new_computed, long long lookahead, long long external, long long encoder, long long reserved, bint caches, bint whole_must_fit, bint is_beside_others)
