# C types of kvfast/_core/under_way.py.
cimport cython
from kvfast._compiled cimport cell_fields as cell
from kvfast._compiled.manager cimport FastManager
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables

cdef long long MANY
cdef int ASKED
cdef int PLAIN
cdef int DONE


cdef class UnderWay(Registry):
    cdef bint is_plain
    cdef long long block_size
    cdef bint caches
    cdef object running
    cdef int[::1] row_at
    cdef long long[::1] after_at
    cdef long long[::1] granted_at
    cdef int[::1] way_at
    cdef int[::1] filled_at
    cdef long long ahead
    cdef Py_ssize_t end_preempted
    cdef Py_ssize_t end_under_way
    cdef long long lookahead
    cdef long long granted

    cdef int make_room_for_entries(self) except -1
    cdef FastRequest request_at(self, Py_ssize_t i)
    @cython.locals(i=Py_ssize_t)
    cdef bint are_under_way(self) except -1
    @cython.locals(tables=Tables, size="long long", lookahead="long long", longest="long long", caches=bint, num_asked=Py_ssize_t, num_filled=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, row="long long", computed="long long", after="long long", held="long long")
    cdef Py_ssize_t choose_ways(self) except -1
    @cython.locals(core=FastManager, per="long long", width="long long", number="long long", k=Py_ssize_t, i=Py_ssize_t, request=FastRequest)
    cdef int read_ahead(self, Py_ssize_t num_filled) except -1
    @cython.locals(i=Py_ssize_t, request=FastRequest)
    cdef int undo(self) except -1
    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, computed="long long")
    cdef bint may_rewind(self) except -1
    @cython.locals(at=Py_ssize_t)
    cdef int set_computed_at(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, request=FastRequest)
    cdef int rewind_all(self) except -1
    cdef bint is_scheduled(self, FastRequest request) except -1
    @cython.locals(core=FastManager, request=FastRequest, computed="long long", row=int, g=int, held="long long")
    cdef bint may_continue(self, Py_ssize_t i) except -1
    @cython.locals(i=Py_ssize_t, num_tokens="long long", goes_on=bint)
    cdef int continue_all(self) except -1
    @cython.locals(core=FastManager, request=FastRequest, row=int, local="long long")
    cdef bint go_on(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(core=FastManager, row=int, after="long long", size="long long", held="long long", needed="long long", request=FastRequest, end="long long", first="long long")
    cdef bint go_on_plain(self, Py_ssize_t i, long long watermark) except -1
    cdef int cache_until(self, int row, FastRequest request, long long computed) except -1
