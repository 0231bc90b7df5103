# C types of kvfast/_core/registry.py.
cimport cython
from kvfast._compiled cimport cell_fields as cell
from kvfast._compiled.manager cimport FastManager
from kvfast._compiled.request cimport FastRequest

cdef int COUNT_BITS


cdef class Registry:
    cdef FastManager core
    cdef int num_groups
    cdef list requests
    cdef dict handle_of_id
    cdef object released
    cdef int[::1] reported
    cdef long long[::1] named
    cdef long long[::1] cells
    cdef object mark
    cdef long long call
    cdef long long[::1] handles
    cdef long long[::1] counts
    cdef Py_ssize_t size

    cdef bint is_ready(self) noexcept
    cdef int enter(self) except -1
    @cython.locals(handle=Py_ssize_t)
    cdef Py_ssize_t add(self, FastRequest request) except -1
    @cython.locals(handle=Py_ssize_t, request=FastRequest, named="long long[::1]", reported="int[::1]", cells="long long[::1]")
    cdef int make_room_for_requests(self, Py_ssize_t num_handles) except -1
    cdef bint has_cells_of(self, FastRequest request) noexcept
    @cython.locals(request=FastRequest)
    cdef int remove(self, Py_ssize_t handle) except -1
    cdef void note_row(self, Py_ssize_t handle, long long row) noexcept nogil
    @cython.locals(g=int)
    cdef void nothing_reported(self, Py_ssize_t handle) noexcept nogil
    @cython.locals(g=int, total="long long", length="long long", told="long long")
    cdef long long rows_to_tell(self, Py_ssize_t handle, int row) noexcept nogil
    cdef void start_call(self) noexcept nogil
    @cython.locals(handles="long long[::1]", counts="long long[::1]")
    cdef int make_room(self, Py_ssize_t num_entries) except -1
    @cython.locals(start=Py_ssize_t, num=Py_ssize_t, known=Py_ssize_t, i=Py_ssize_t, handle="long long")
    cdef bint add_handles(self, values) except -1
    @cython.locals(count="long long", i=Py_ssize_t)
    cdef bint set_counts(self, Py_ssize_t start, values, long long minimum) except -1
    @cython.locals(count="long long")
    cdef long long count_of(self, value) except -2
    cdef Py_ssize_t copy_in(self, values) except -2
    cdef Py_ssize_t copy_view(self, view, int item_bytes) except -2
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t, number="long long")
    cdef Py_ssize_t copy_list(self, list values) except -2
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t copy_ints(self, const int[::1] view) except -2
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t copy_longs(self, const long long[::1] view) except -2
