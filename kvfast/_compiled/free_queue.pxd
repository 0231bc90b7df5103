# C types of kvfast/_core/free_queue.py. Without this file the same code runs uncompiled.
# No bounds checks and no exceptions: plain array arithmetic on blocks that the caller vouches for.
cimport cython


cdef class FreeQueue:
    cdef int[::1] nxt
    cdef int[::1] prv
    cdef readonly int num_blocks
    cdef readonly int num_free

    @cython.locals(n=int, block=int)
    cdef void link_all(self) noexcept nogil
    @cython.locals(block=int, after=int)
    cdef int take(self) noexcept nogil
    @cython.locals(before=int, after=int)
    cdef void unlink(self, int block) noexcept nogil
    @cython.locals(right=int)
    cdef void put_after(self, int left, int block) noexcept nogil
    cdef void put_last(self, int block) noexcept nogil
