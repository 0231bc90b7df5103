# C types of kvfast/_core/batch.py.
cimport cython
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.steps cimport Steps
from kvfast._compiled.tables cimport Tables

cdef long long MANY


cdef class FastBatch(Steps):
    cdef object shown
    cdef object capabilities

    cdef object do_register(self, request)
    cdef object do_unregister(self, handles)
    cdef object do_request_of(self, handle)
    cdef int chosen(self, handles) except -1
    @cython.locals(num_tokens="long long", wanted="long long", i=Py_ssize_t, legal=bint, at=Py_ssize_t, request=FastRequest)
    cdef object do_append(self, handles, token_ids, counts)
    @cython.locals(i=Py_ssize_t)
    cdef object do_rewind(self, handles, num_tokens)
    @cython.locals(i=Py_ssize_t, view="long long[::1]")
    cdef object do_lookup(self, handles)
    cdef object do_decode(self, handles, num_new_tokens, num_lookahead_tokens, output)
    cdef object do_free(self, handles)
    cdef object do_preempt(self, handles)
    cdef int give_all_back(self, handles, bint preempts) except -1
    cdef object do_step(self, plan, output)
    cdef object done(self, bint starts_step)
    cdef int read_options(self, plan) except -1
    @cython.locals(end=Py_ssize_t)
    cdef bint read_entries(self, plan) except -1
    cdef int open_outputs(self, output) except -1
    cdef int close_outputs(self) except -1
    @cython.locals(length="long long")
    cdef int check_room(self) except -1
    @cython.locals(g=int, views=list, is_usual=bint)
    cdef list open_slots(self, given)
    cdef bint has_slots(self, int g) except -1
    cdef object do_take_deltas(self, block_deltas)
    cdef object do_num_pending_deltas(self)
    cdef object do_next_free_blocks(self, num_blocks)
    @cython.locals(view="int[::1]", tables=Tables, i=Py_ssize_t, row=int, g=int)
    cdef object do_list_lengths(self, handles)

cdef object open_rows(given)
cdef object view_of_slots(given)
cdef object result_of(scheduled, hits, num_slots, num_deltas, num_left)
