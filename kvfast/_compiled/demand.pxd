# C types of kvfast/_core/demand.py.
cimport cython


@cython.final
cdef class Asked:
    cdef long long new, lookahead, local, external, skip_at, encoder, reserved, watermark
    cdef bint has_hits, whole_must_fit

    cdef Asked of(self, long long new, long long lookahead, long long local)


@cython.final
cdef class Demand:
    cdef long long slots, main, local, external, skip_at, encoder

    cdef Demand of(self, long long slots, long long main, long long local, long long external, long long skip_at, long long encoder)
