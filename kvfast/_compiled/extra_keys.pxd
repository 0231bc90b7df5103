# C types of kvfast/_core/extra_keys.py: only its positions; extra keys are Python objects.
cimport cython

cpdef bint has_extra_keys(request) except -1


@cython.locals(start="long long", i=Py_ssize_t)
cdef long long _next_change(request, long long block_size, long long block, long long ahead) except -1

cdef Py_ssize_t _first_item(tuple items, long long start) except -1
