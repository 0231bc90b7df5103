# C types of kvfast/_core/tables.py.
cimport cython
from kvfast._compiled cimport objects

cdef long long SMALLEST_PLACE
cdef int NUM_SIZES
cdef long long LINK_BASE


@cython.final
cdef class Tables:
    cdef readonly int num_groups, num_rows
    cdef int max_rows
    cdef long long[::1] start, room
    cdef int[::1] length, cached, passed, allocated
    cdef long long[::1] serial
    cdef long long last_serial
    cdef int[::1] free_row
    cdef int first_free_row
    cdef int[::1] arena
    cdef long long arena_end
    cdef long long[::1] places
    cdef int[::1] num_nonempty

    cdef bint is_null(self, long long at, long long index) noexcept nogil
    @cython.locals(row=int)
    cdef int take_row(self) except -1
    @cython.locals(per_list="long long")
    cdef int grow_rows(self) except -1
    @cython.locals(group=int, at="long long")
    cdef void clear_row(self, int row) noexcept nogil
    cdef void give_row(self, int row) noexcept nogil
    cdef void append(self, long long at, int block) noexcept nogil
    cdef int make_room(self, long long at, int group, long long num_blocks) except -1
    @cython.locals(room="long long", place="long long", start="long long", i="long long")
    cdef int move(self, long long at, long long num_blocks) except -1
    @cython.locals(size=int)
    cdef int size_of(self, long long room) noexcept nogil
    @cython.locals(size=int, place="long long")
    cdef Py_ssize_t take_place(self, long long room) except -1
    @cython.locals(size=int, link="long long")
    cdef void give_place(self, long long place, long long room) noexcept nogil
    @cython.locals(low="long long", high="long long")
    cdef long long link_of(self, long long place) noexcept nogil
    @cython.locals(start="long long")
    cpdef list to_list(self, long long at)
