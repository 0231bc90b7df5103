# What other modules may use of objects.pyx.

cdef object result_of(scheduled, hits, long long num_slots, long long num_deltas, long long num_left)
cdef object filled(Py_ssize_t count, long long value)
cdef bint put_array(values, long long[::1] to, Py_ssize_t at, Py_ssize_t count) noexcept
cdef int[:, ::1] rows_of(given)
cdef list pieces_of(const unsigned char[::1] data, Py_ssize_t size, Py_ssize_t first, Py_ssize_t end)
