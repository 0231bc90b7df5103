# C types of kvfast/_core/batch.py.
cimport cython
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.steps cimport Steps
from kvfast._compiled.tables cimport Tables

cdef long long MANY


cdef class FastBatch(Steps):
    cdef object shown
    cdef object capabilities

    cdef int chosen(self, handles) except -1
    cdef int give_all_back(self, handles, bint preempts) except -1
    cdef object done(self, output, bint starts_step)
    cdef tuple open_outputs(self, output)
    @cython.locals(g=int, views=list, is_usual=bint)
    cdef list open_slots(self, given, long long length)
    cdef bint has_slots(self, int g) except -1
    cdef int read_options(self, plan) except -1
    @cython.locals(end=Py_ssize_t)
    cdef bint read_entries(self, plan) except -1
    @cython.locals(num_tokens="long long", wanted="long long", i=Py_ssize_t, legal=bint, at=Py_ssize_t, request=FastRequest)
    cpdef append(self, handles, token_ids, counts=*)
    @cython.locals(i=Py_ssize_t)
    cpdef rewind(self, handles, num_tokens)
    @cython.locals(i=Py_ssize_t, view="long long[::1]")
    cpdef lookup(self, handles)
    @cython.locals(view="int[::1]", tables=Tables, i=Py_ssize_t, row=int, g=int)
    cpdef list_lengths(self, handles)

cdef object open_rows(given)
cdef object view_of_slots(given, long long length)
cdef object result_of(scheduled, hits, num_slots, num_deltas, num_left)
