# C types of kvfast/_core/batch.py.
cimport cython
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.steps cimport Steps

cdef long long MANY


cdef class FastBatch(Steps):
    cdef object shown
    cdef object capabilities

    cdef int chosen(self, handles) except -1
    cdef int read_options(self, plan) except -1
    @cython.locals(end=Py_ssize_t)
    cdef bint read_entries(self, plan) except -1
    @cython.locals(num_tokens="long long", wanted="long long", i=Py_ssize_t, legal=bint, at=Py_ssize_t, request=FastRequest)
    cpdef append(self, handles, token_ids, counts=*)
    @cython.locals(legal=bint, i=Py_ssize_t, request=FastRequest)
    cpdef rewind(self, handles, num_tokens)
    @cython.locals(i=Py_ssize_t, view="long long[::1]")
    cpdef lookup(self, handles)
