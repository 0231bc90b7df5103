# C types of kvfast/_core/running.py.
cimport cython
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled cimport objects
from kvfast._compiled cimport probing_fields as probing
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.ahead cimport Ahead
from kvfast._compiled.core cimport Core
from kvfast._compiled.demand cimport Asked
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables

cdef long long MANY


@cython.final
cdef class Running:
    cdef Core core
    cdef Registry registry
    cdef Entries entries
    cdef Ahead ahead
    cdef int num_groups
    cdef long long block_size
    cdef bint caches, in_any_order
    cdef object running, waiting
    cdef long long granted
    cdef bint refused

    @cython.locals(entries=Entries, ahead=Ahead, i=Py_ssize_t, k=Py_ssize_t)
    cdef bint may_all_continue(self) except -1
    @cython.locals(registry=Registry, entries=Entries, i=Py_ssize_t, at=Py_ssize_t, computed="long long")
    cdef bint may_rewind(self) except -1
    @cython.locals(at=Py_ssize_t)
    cdef int set_computed_at(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(registry=Registry, entries=Entries, i=Py_ssize_t, at=Py_ssize_t, request=FastRequest)
    cdef int rewind_all(self) except -1
    cdef bint is_scheduled(self, FastRequest request) except -1
    @cython.locals(entries=Entries, core=Core, request=FastRequest, computed="long long", row=int, g=int, at="long long", held="long long", first="long long")
    cdef bint may_continue(self, Py_ssize_t i) except -1
    @cython.locals(ahead=Ahead)
    cdef int continue_all(self) except -1
    @cython.locals(entries=Entries, ahead=Ahead, core=Core, size="long long", max_len="long long", lookahead="long long", lengths="int *", left_at="int *", fields="long long *", handles="long long *", rows="int *", after_at="long long *", k=Py_ssize_t, i=Py_ssize_t, after="long long", held="long long", missing="long long", needed="long long")
    cdef int take_each(self) except -1
    @cython.locals(entries=Entries, core=Core, tables=Tables, requests=list, rows="int *", filled_at="int *", handles="long long *", homes="long long *", per="long long", width="long long", number="long long", row="long long", cached="long long", block="long long", k=Py_ssize_t, i=Py_ssize_t, request=FastRequest)
    cdef int fill_each(self) except -1
    @cython.locals(core=Core, first="long long", tokens="long long", end="long long", block="long long", per="long long")
    cdef int fill(self, long long row, FastRequest request, long long after, long long home) except -1
    @cython.locals(entries=Entries, ahead=Ahead, k=Py_ssize_t, i=Py_ssize_t, num_tokens="long long", goes_on=bint, granted="long long")
    cdef int continue_each(self) except -1
    @cython.locals(core=Core, request=FastRequest, row=int, local="long long", asked=Asked)
    cdef bint go_on(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(core=Core, row=int, after="long long", size="long long", held="long long", slots="long long", needed="long long")
    cdef bint go_on_plain(self, Py_ssize_t i, long long watermark) except -1
    cdef int cache_until(self, int row, FastRequest request, long long computed) except -1
