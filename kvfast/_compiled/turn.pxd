# C types of kvfast/_core/turn.py.
cimport cython

cdef int IDLE, ASKING, CHANGING, SPOILT


@cython.final
cdef class Turn:
    cdef int state
    cdef object cause

    cpdef int take(self) except -1
    cdef int refuse(self) except -1
    cpdef void changes(self) noexcept
    cpdef void changed(self) noexcept
    cdef bint is_spoilt(self) noexcept
    cpdef int give_back(self) except -1
    cdef int spoil(self) except -1
