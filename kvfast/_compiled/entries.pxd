# C types of kvfast/_core/entries.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest

cdef int COUNT_BITS
cdef object array


@cython.final
cdef class Entries:
    cdef Registry registry
    cdef long long call
    cdef long long[::1] handles, counts
    cdef Py_ssize_t size
    cdef int[::1] row_at
    cdef long long[::1] after_at, granted_at
    cdef int[::1] is_asked
    cdef Py_ssize_t end_finished, end_preempted, end_running

    cdef FastRequest request_at(self, Py_ssize_t i)
    cdef int make_room_for_step(self) except -1
    cdef void start_call(self) noexcept nogil
    @cython.locals(handles="long long[::1]", counts="long long[::1]")
    cdef int make_room(self, Py_ssize_t num_entries) except -1
    @cython.locals(start=Py_ssize_t, call="long long", num=Py_ssize_t, known=Py_ssize_t, handles="long long *", named="long long *", i=Py_ssize_t, handle="long long")
    cdef bint add_handles(self, values) except -1
    @cython.locals(count="long long", counts="long long *", i=Py_ssize_t)
    cdef bint set_counts(self, Py_ssize_t start, values, long long minimum) except -1
    @cython.locals(small=Py_ssize_t, count="long long")
    cdef Py_ssize_t count_of(self, value) except -2
    @cython.locals(handles="long long *", count=Py_ssize_t)
    cdef Py_ssize_t copy_in(self, values, Py_ssize_t most) except -2
    cdef Py_ssize_t copy_view(self, view, int item_bytes) except -2
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t, number="long long")
    cdef Py_ssize_t copy_list(self, list values) except -2
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t copy_ints(self, const int[::1] view) except -2
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t copy_longs(self, const long long[::1] view) except -2
