# C types of kvfast/_core/registry.py.
cimport cython
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled.core cimport Core
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.turn cimport Turn

cdef long long NOBODY


@cython.final
cdef class Registry:
    cdef Core core
    cdef Turn turn
    cdef int num_groups
    cdef list requests
    cdef dict handle_of_id
    cdef object released
    cdef int[::1] reported
    cdef long long[::1] named, fields
    cdef object mark

    @cython.locals(handle=Py_ssize_t)
    cdef Py_ssize_t add(self, FastRequest request) except -1
    @cython.locals(handle=Py_ssize_t, request=FastRequest, named="long long[::1]", reported="int[::1]", fields="long long[::1]")
    cdef int make_room(self, Py_ssize_t num_handles) except -1
    cdef bint holds_fields_of(self, FastRequest request) noexcept
    @cython.locals(request=FastRequest)
    cdef int remove(self, Py_ssize_t handle) except -1
    @cython.locals(at=Py_ssize_t)
    cdef void look_again(self, Py_ssize_t handle) noexcept nogil
    cdef void note_row(self, Py_ssize_t handle, long long row) noexcept nogil
    @cython.locals(g=int)
    cdef void nothing_reported(self, Py_ssize_t handle) noexcept nogil
    @cython.locals(g=int, total="long long", length="long long", reported="long long")
    cdef long long num_unreported(self, Py_ssize_t handle, int row) noexcept nogil
