# C types of kvfast/_core/steps.py.
cimport cython
from kvfast._compiled.manager cimport FastManager
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables

cdef long long MANY


cdef class Steps(Registry):
    cdef bint is_plain
    cdef bint caches
    cdef object running
    cdef int[::1] row_at
    cdef long long[::1] after_at
    cdef int[::1] is_done
    cdef int[:, ::1] rows
    cdef object no_rows
    cdef Py_ssize_t end_finished
    cdef Py_ssize_t end_preempted
    cdef Py_ssize_t end_under_way
    cdef long long lookahead
    cdef long long budget
    cdef long long reserved
    cdef bint whole_must_fit
    cdef bint stops_at_refusal
    cdef object scheduled
    cdef object hits
    cdef long long granted

    cdef FastRequest request_at(self, Py_ssize_t i)
    @cython.locals(i=Py_ssize_t)
    cdef bint all_legal(self) except -1
    @cython.locals(i=Py_ssize_t, request=FastRequest)
    cdef int undo(self) except -1
    @cython.locals(core=FastManager, tables=Tables, holders=list, size="long long", per="long long", longest="long long", i=Py_ssize_t, request=FastRequest, row="long long", after="long long")
    cdef int go_on_within_blocks(self) except -1
    @cython.locals(i=Py_ssize_t)
    cdef bint are_others_legal(self) except -1
    cdef bint is_scheduled(self, FastRequest request) except -1
    @cython.locals(core=FastManager, request=FastRequest, computed="long long", row=int, g=int, held="long long")
    cdef bint may_continue(self, Py_ssize_t i) except -1
    @cython.locals(core=FastManager)
    cdef bint may_start(self, FastRequest request) except -1
    @cython.locals(certain="long long", wanted="long long", i=Py_ssize_t)
    cdef long long most_slots(self) except -2
    @cython.locals(i=Py_ssize_t)
    cdef int perform(self) except -1
    @cython.locals(request=FastRequest, row=int)
    cdef int give_back(self, Py_ssize_t i) except -1
    @cython.locals(first=Py_ssize_t, i=Py_ssize_t, num_tokens="long long")
    cdef int continue_all(self, long long[::1] scheduled) except -1
    @cython.locals(core=FastManager, request=FastRequest, row=int, local="long long")
    cdef bint go_on(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(core=FastManager, size="long long", held="long long", needed="long long", end="long long", first="long long")
    cdef bint go_on_plain(self, FastRequest request, int row, long long after) except -1
    cdef int cache_until(self, int row, FastRequest request, long long computed) except -1
    @cython.locals(budget="long long", is_beside_others=bint, first=Py_ssize_t, i=Py_ssize_t, request=FastRequest, hit="long long", num_tokens="long long")
    cdef int start_all(self, long long[::1] scheduled, long long[::1] hits) except -1
    @cython.locals(core=FastManager, tokens="long long")
    cdef long long hit_of(self, FastRequest request) except -2
    @cython.locals(core=FastManager, row=int)
    cdef bint start(self, FastRequest request, long long hit, long long num_tokens, bint is_beside_others) except -1
    @cython.locals(tables=Tables, size="long long", to="long long", i=Py_ssize_t, num_tokens="long long", request=FastRequest, start="long long", position="long long", index="long long", first="long long", offset="long long", end="long long", k="long long")
    cdef int write_slots(self, int g, long long[::1] slots, long long[::1] scheduled) except -1
    @cython.locals(at=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t write_rows(self, long long[::1] scheduled) except -1
    @cython.locals(tables=Tables, room=Py_ssize_t, g=int, told="long long", length="long long", start="long long")
    cdef Py_ssize_t report(self, Py_ssize_t handle, int row, Py_ssize_t at) except -1
    @cython.locals(left="long long", i=Py_ssize_t)
    cdef long long rows_left(self, long long[::1] scheduled) except -2
