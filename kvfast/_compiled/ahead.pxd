# C types of kvfast/_core/ahead.py.
cimport cython
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled cimport objects
from kvfast._compiled.core cimport Core
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.objects cimport Rows
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.turn cimport Turn


@cython.final
cdef class Ahead:
    cdef Core core
    cdef Turn turn
    cdef Registry registry
    cdef Entries entries
    cdef Rows rows
    cdef bint is_plain
    cdef long long block_size
    cdef bint caches
    cdef int[::1] left_at, filled_at
    cdef long long[::1] home_at
    cdef Py_ssize_t num_left, num_asked, num_filled
    cdef long long num_needed, lookahead, granted
    cdef bint notes_all, is_ahead

    cdef int make_room(self) except -1
    @cython.locals(entries=Entries, i=Py_ssize_t)
    cdef int sort_all(self) except -1
    cdef void leave(self, Py_ssize_t i, bint is_asked) noexcept nogil
    cdef void ask(self, Py_ssize_t i) noexcept nogil
    @cython.locals(entries=Entries, handles="long long *", counts="long long *", fields="long long *", serials="long long *", left_at="int *", num_left=Py_ssize_t, lookahead="long long", notes_all=bint, granted="long long", i=Py_ssize_t, at=Py_ssize_t, row="long long", computed="long long", count="long long", after="long long")
    cdef int count_all(self) except -1
    @cython.locals(entries=Entries, registry=Registry, tables=Tables, handles="long long *", counts="long long *", fields="long long *", reported="int *", lengths="int *", cached_at="int *", size="long long", caches=bint, max_len="long long", k=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, row="long long", computed="long long", after="long long", length="long long", cached="long long", held="long long", fills=bint, missing="long long", has_told=bint)
    cdef int sort_left(self, Py_ssize_t num_left) except -1
    @cython.locals(at=Py_ssize_t, until="long long")
    cdef void note_reach(self, Py_ssize_t handle, long long row) noexcept nogil
    cdef void note(self, Py_ssize_t i, long long row, long long after) noexcept nogil
    @cython.locals(entries=Entries, i=Py_ssize_t, k=Py_ssize_t, request=FastRequest)
    cdef int undo(self) except -1
