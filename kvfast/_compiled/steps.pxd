# C types of kvfast/_core/steps.py.
cimport cython
from kvfast._compiled.manager cimport FastManager
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.under_way cimport UnderWay

cdef long long MANY


cdef class Steps(UnderWay):
    cdef object zero
    cdef int[:, ::1] rows
    cdef int[:, ::1] no_rows
    cdef long long rows_left
    cdef bint has_rows
    cdef list no_slots
    cdef list slots
    cdef Py_ssize_t end_finished
    cdef long long budget
    cdef long long reserved
    cdef bint whole_must_fit
    cdef bint stops_at_refusal
    cdef object scheduled
    cdef object hits

    @cython.locals(legal=bint)
    cdef bint all_legal(self) except -1
    @cython.locals(i=Py_ssize_t)
    cdef bint are_others_legal(self) except -1
    @cython.locals(core=FastManager)
    cdef bint may_start(self, FastRequest request) except -1
    @cython.locals(certain="long long", wanted="long long", i=Py_ssize_t)
    cdef long long most_slots(self) except -2
    @cython.locals(i=Py_ssize_t)
    cdef int perform(self) except -1
    @cython.locals(request=FastRequest, row=int)
    cdef int give_back(self, Py_ssize_t i) except -1
    @cython.locals(budget="long long", is_beside_others=bint, first=Py_ssize_t, i=Py_ssize_t, request=FastRequest, hit="long long", num_tokens="long long")
    cdef int start_all(self, long long[::1] hits) except -1
    @cython.locals(core=FastManager, tokens="long long")
    cdef long long find_hit(self, FastRequest request) except -2
    cdef int count_hit(self, FastRequest request, long long tokens) except -1
    @cython.locals(core=FastManager, row=int)
    cdef bint start(self, FastRequest request, long long hit, long long num_tokens, bint is_beside_others) except -1
    @cython.locals(i=Py_ssize_t)
    cdef int write_granted(self, long long[::1] scheduled) except -1
    @cython.locals(tables=Tables, size="long long", to="long long", i=Py_ssize_t, num_tokens="long long", start="long long", position="long long", index="long long", first="long long", offset="long long", end="long long", k="long long")
    cdef int write_slots(self, int g, long long[::1] slots) except -1
    @cython.locals(tables=Tables, at=Py_ssize_t, i=Py_ssize_t, untold="long long", end=Py_ssize_t)
    cdef Py_ssize_t write_rows(self) except -1
    @cython.locals(tables=Tables, room=Py_ssize_t, g=int, told="long long", length="long long", start="long long")
    cdef Py_ssize_t report(self, Py_ssize_t handle, int row, Py_ssize_t at) except -1
