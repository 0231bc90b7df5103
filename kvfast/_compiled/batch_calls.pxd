# C types of kvfast/_core/batch_calls.py.
cimport cython
from kvfast._compiled cimport following, hot_fields as hot, objects
from kvfast._compiled.checks cimport Checks
from kvfast._compiled.core cimport Core
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.objects cimport Results
from kvfast._compiled.outputs cimport Outputs
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.ahead cimport Ahead
from kvfast._compiled.running cimport Running
from kvfast._compiled.steps cimport Steps
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.turn cimport Turn

cdef long long MANY, COUNT_MAX


@cython.final
cdef class BatchCalls:
    cdef Core core
    cdef Checks checks
    cdef Turn turn
    cdef object capabilities
    cdef int num_groups
    cdef Registry registry
    cdef Entries entries
    cdef Running running
    cdef Ahead ahead
    cdef Steps steps
    cdef Outputs outputs

    cdef int leave(self) except -1
    @cython.locals(registry=Registry)
    cdef object register(self, request)
    @cython.locals(entries=Entries)
    cdef object unregister(self, handles)
    @cython.locals(registry=Registry)
    cdef object request_of(self, handle)
    @cython.locals(entries=Entries)
    cdef int chosen(self, handles) except -1
    @cython.locals(entries=Entries, num_tokens="long long", wanted="long long", i=Py_ssize_t, legal=bint, at=Py_ssize_t, request=FastRequest)
    cdef object append(self, handles, token_ids, counts)
    @cython.locals(entries=Entries, read=tuple)
    cdef object follow(self, handles, num_tokens, hashes, num_prompt_tokens)
    @cython.locals(entries=Entries, i=Py_ssize_t)
    cdef object rewind(self, handles, num_tokens)
    @cython.locals(entries=Entries, i=Py_ssize_t, view="long long[::1]")
    cdef object lookup(self, handles)
    @cython.locals(entries=Entries)
    cdef object admit(self, handles, max_new, budget, lookahead, whole_must_fit, reserved, stops, output)
    @cython.locals(entries=Entries)
    cdef object decode(self, handles, num_new_tokens, num_lookahead_tokens, output)
    cdef object free(self, handles)
    cdef object preempt(self, handles)
    @cython.locals(entries=Entries)
    cdef int give_all_back(self, handles, bint preempts) except -1
    cdef object step(self, plan, output)
    @cython.locals(steps=Steps, outputs=Outputs, entries=Entries, results=Results, written=Py_ssize_t)
    cdef object done(self, bint starts_step)
    @cython.locals(checks=Checks)
    cdef int read_options(self, budget, lookahead, reserved, whole_must_fit, stops) except -1
    @cython.locals(entries=Entries, end=Py_ssize_t)
    cdef bint read_entries(self, plan) except -1
    @cython.locals(registry=Registry, handle=Py_ssize_t, num_rows=Py_ssize_t)
    cdef object take_deltas(self, block_deltas)
    @cython.locals(registry=Registry)
    cdef object num_pending_deltas(self)
    @cython.locals(left=int)
    cdef object next_free_blocks(self, num_blocks, after)
    @cython.locals(entries=Entries, view="int[::1]", tables=Tables, i=Py_ssize_t, row=int, g=int)
    cdef object list_lengths(self, handles)
