# C types of kvfast/_core/free_queue.py. Without this file the same code runs uncompiled.
# No bounds checks, no exceptions, no GIL: plain array arithmetic on indices FreeQueue has checked.
cimport cython


@cython.locals(n=int, block=int)
cdef void init(int[::1] nxt, int[::1] prv) noexcept nogil

@cython.locals(i=int, block=int, after=int)
cdef void pop_front_n(int[::1] nxt, int[::1] prv, int[::1] out) noexcept nogil

@cython.locals(before=int, after=int)
cdef void remove(int[::1] nxt, int[::1] prv, int block) noexcept nogil

@cython.locals(i=int, block=int, right=int)
cdef void link_run(int[::1] nxt, int[::1] prv, int[::1] run, int left) noexcept nogil

cdef void append_run(int[::1] nxt, int[::1] prv, int[::1] run) noexcept nogil

cdef void prepend_run(int[::1] nxt, int[::1] prv, int[::1] run) noexcept nogil

@cython.locals(count=int, block=int)
cdef int length(int[::1] nxt) noexcept nogil

@cython.locals(block=int)
cdef list to_list(int[::1] nxt)
