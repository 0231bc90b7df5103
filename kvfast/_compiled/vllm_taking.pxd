# C types of kvfast/engines/vllm/taking.py.
cimport cython
from kvfast._compiled.vllm_loops cimport Seats

cdef int AHEAD


@cython.final
cdef class Taker:
    cdef object running, preempted, made, told, ends, stopped, encoded, cached, prefilled
    cdef long long hash_size, longest, ahead
    cdef bint in_flight, drafts
    cdef readonly dict num_rewound

    @cython.locals(answers=dict, place=Py_ssize_t, num_seats=Py_ssize_t, one=dict, new=list, before=Py_ssize_t, num_sampled=Py_ssize_t, has_ended=bint, is_stale=bint)
    cpdef dict take_all(self, Seats seats, dict names, dict requests, list sampled, dict places, dict drafts)
    @cython.locals(flying="long long", stale="long long")
    cdef bint land(self, dict one, long long count) except -1
    @cython.locals(count="long long")
    cdef rewind(self, dict one, long long num_drafts, long long num_right, bint is_stale)
    @cython.locals(known=list, outputs=list, hashes=list, longest="long long", size="long long", most="long long", number=Py_ssize_t, always=bint)
    cdef bint take(self, object request, dict one, list new) except -1
    @cython.locals(size="long long", later="long long", done="long long", final="long long", was_ahead=bint)
    cdef settle(self, object request, dict one, Py_ssize_t before, Py_ssize_t num_sampled, Py_ssize_t num_kept, bint is_running)
    cdef answer(self, object request, dict one, str name, list new, object status, bint has_ended)
