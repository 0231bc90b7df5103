# C types of kvfast/_core/outputs.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled.ahead cimport Ahead
from kvfast._compiled.core cimport Core
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.objects cimport Rows
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.tables cimport Tables

cdef object StepOutput


@cython.final
cdef class Outputs:
    cdef Core core
    cdef Registry registry
    cdef Entries entries
    cdef Ahead ahead
    cdef int num_groups
    cdef Rows rows
    cdef long long rows_left
    cdef list no_slots, slots

    cdef int open(self, output) except -1
    @cython.locals(g=int, views=list, is_usual=bint)
    cdef list open_slots(self, given)
    cdef bint has_slots(self, int g) except -1
    cdef int close(self) except -1
    @cython.locals(g=int)
    cdef int check_room(self, long long length) except -1
    @cython.locals(g=int)
    cdef Py_ssize_t write(self) except -1
    @cython.locals(entries=Entries, tables=Tables, size="long long", to="long long", i=Py_ssize_t, num_tokens="long long", start="long long", position="long long", index="long long", first="long long", offset="long long", end="long long", k="long long")
    cdef int write_slots(self, int g, long long[::1] slots) except -1
    @cython.locals(entries=Entries, at=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t write_rows(self) except -1
    @cython.locals(entries=Entries, ahead=Ahead, tables=Tables, left_at="int *", handles="long long *", reported="int *", lengths="int *", at=Py_ssize_t, k=Py_ssize_t, i=Py_ssize_t, handle=Py_ssize_t, row=int, told="long long", block=int)
    cdef Py_ssize_t write_left(self) except -1
    @cython.locals(entries=Entries, handle=Py_ssize_t, row=int)
    cdef Py_ssize_t write_rows_of(self, Py_ssize_t i, Py_ssize_t at) except -1
    @cython.locals(reported="int *", tables=Tables, rows=Rows, arena="int *", g=int, told="long long", length="long long", start="long long", count="long long")
    cdef Py_ssize_t report(self, Py_ssize_t handle, int row, Py_ssize_t at) except -1


cdef object slots_of(given)
