# C types of kvfast/engines/vllm/taking.py.
cimport cython
from kvfast._compiled.vllm_loops cimport Seats


@cython.final
cdef class Taker:
    cdef object running, preempted, made, told, ends, stopped, cached, prefilled
    cdef public object let_go, pooled
    cdef bint in_flight, by_flight, drafts, is_strict
    cdef readonly dict num_rewound, answers
    cdef readonly list ended
    cdef long long client
    cdef list of_client

    @cython.locals(place=Py_ssize_t, found=Py_ssize_t, num_seats=Py_ssize_t, new=list, alone=Seats, count="long long")
    cpdef dict take_all(self, Seats seats, dict names, dict requests, list sampled, dict places, dict drafts)
    @cython.locals(i=Py_ssize_t)
    cdef Py_ssize_t place_of(self, Seats seats, str name, Py_ssize_t place) except -1
    @cython.locals(one=dict, known=list, is_stale=bint, is_running=bint, num_sampled=Py_ssize_t, before=Py_ssize_t, has_ended=bint, is_discarded=bint)
    cdef bint take(self, Seats seats, Py_ssize_t i, list new, long long count, dict drafts, object status, Py_ssize_t place) except -1
    @cython.locals(flying="long long", stale="long long")
    cdef bint land(self, dict one, long long count) except -1
    @cython.locals(count="long long")
    cdef rewind(self, dict one, long long num_drafts, long long num_right, bint is_stale)
    @cython.locals(number=Py_ssize_t)
    cdef bint append(self, Seats seats, Py_ssize_t i, list new) except -1
    @cython.locals(one=dict, size="long long", later="long long", done="long long", final="long long", was_ahead=bint)
    cdef settle(self, Seats seats, Py_ssize_t i, Py_ssize_t before, Py_ssize_t num_sampled, Py_ssize_t num_kept, bint is_running)
    @cython.locals(one=dict, plain=Py_ssize_t, is_plain=bint, at=Py_ssize_t, client="long long")
    cdef answer(self, Seats seats, Py_ssize_t i, list new, object status, bint has_ended, Py_ssize_t place)
    cdef bint becomes_plain(self, dict one) except -1
