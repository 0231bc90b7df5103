# C types of kvfast/_core/token_copy.py.
cimport cython
from kvfast._compiled cimport objects


@cython.locals(i=Py_ssize_t, done=Py_ssize_t, token="long long", largest="long long")
cdef Py_ssize_t put_list(long long[::1] tokens, Py_ssize_t at, list values, Py_ssize_t count) except -2

@cython.locals(i=Py_ssize_t, token="long long")
cdef Py_ssize_t put_longs(
    long long[::1] tokens, Py_ssize_t at, const long long[::1] values
) noexcept

@cython.locals(i=Py_ssize_t, token="long long")
cdef Py_ssize_t put_ints(long long[::1] tokens, Py_ssize_t at, const int[::1] values) noexcept
