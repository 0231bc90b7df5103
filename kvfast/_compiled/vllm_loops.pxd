# C types of kvfast/engines/vllm/loops.py.
cimport cython
from kvfast._compiled.request cimport FastRequest

cdef int AHEAD


@cython.final
cdef class Seats:
    cdef readonly list requests, names, mine, members
    cdef readonly object handles
    cdef long long[::1] computed_at, goal_at
    cdef dict last_step
    cdef long long last_count, ahead

    @cython.locals(left="long long", took=list, counts=list, computed=list, outputs=list, drafts=dict, most="long long", same="long long", i=Py_ssize_t, one=dict, spec=list, known=list, sampled=list, done="long long", later="long long", goal="long long", count="long long", num_drafts=Py_ssize_t)
    cpdef Chosen choose(self, long long budget, long long longest, long long threshold, long long step)
    @cython.locals(i=Py_ssize_t, one=dict, known=list)
    cpdef int read_ahead(self, Py_ssize_t first, Py_ssize_t end) except -1
    cpdef Seats only(self, list places)
    cpdef dict scheduled(self, Chosen chosen)
    @cython.locals(due=list, i=Py_ssize_t, mine=FastRequest, one=dict, known=list)
    cpdef list make_equal(self, long long hash_size, long long ahead, bint in_flight)
    @cython.locals(i=Py_ssize_t, one=dict, known=list)
    cpdef read(self)
    @cython.locals(i=Py_ssize_t, one=dict, later="long long", flying="long long", after="long long", is_chunk=bint)
    cpdef advance(self, list counts, dict drafts, set prefills, list placeholders, long long eligible_at, bint in_flight)
    @cython.locals(got=list, handles="long long[::1]", place=Py_ssize_t, last="long long", k=Py_ssize_t, mine=tuple, blocks=list)
    cpdef list granted(self, int[:, ::1] rows, Py_ssize_t num_rows, Py_ssize_t num_groups)


@cython.final
cdef class Chosen:
    cdef readonly Seats seats
    cdef readonly list counts, computed, outputs
    cdef readonly long long same, most, total
    cdef readonly dict drafts
