# C types of kvfast/_core/steps.py.
cimport cython
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled cimport objects, reports
from kvfast._compiled cimport probing_fields as probing
from kvfast._compiled.ahead cimport Ahead
from kvfast._compiled.core cimport Core
from kvfast._compiled.demand cimport Asked
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.objects cimport Results
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.running cimport Running

cdef long long MANY


@cython.final
cdef class Steps:
    cdef Core core
    cdef Registry registry
    cdef Entries entries
    cdef Running running
    cdef Ahead ahead
    cdef long long budget, reserved
    cdef bint whole_must_fit, stops_at_refusal
    cdef Results results

    @cython.locals(entries=Entries, ahead=Ahead, legal=bint)
    cdef bint all_legal(self) except -1
    @cython.locals(entries=Entries, i=Py_ssize_t, legal=bint)
    cdef bint are_others_legal(self) except -1
    @cython.locals(core=Core, request=FastRequest, end="long long", number="long long", row=int)
    cdef bint may_start(self, Py_ssize_t i) except -1
    @cython.locals(entries=Entries, certain="long long", wanted="long long", i=Py_ssize_t)
    cdef Py_ssize_t most_slots(self) except -2
    @cython.locals(entries=Entries, i=Py_ssize_t, num_running=Py_ssize_t, is_one_each=bint)
    cdef int perform(self) except -1
    @cython.locals(entries=Entries, request=FastRequest)
    cdef int give_back(self, Py_ssize_t i) except -1
    @cython.locals(registry=Registry, entries=Entries, budget="long long", is_beside_others=bint, first=Py_ssize_t, i=Py_ssize_t, request=FastRequest, hit="long long", num_tokens="long long")
    cdef int start_all(self, long long[::1] hits) except -1
    @cython.locals(keys=KeyMap, width="long long", end="long long", number="long long", k="long long")
    cdef int read_ahead(self, FastRequest request) except -1
    @cython.locals(core=Core, tokens="long long")
    cdef Py_ssize_t find_hit(self, FastRequest request) except -2
    cdef int count_hit(self, FastRequest request, long long tokens) except -1
    @cython.locals(core=Core, row=int, asked=Asked)
    cdef bint start(self, Py_ssize_t i, FastRequest request, long long hit, long long num_tokens, bint is_beside_others) except -1
    @cython.locals(entries=Entries, ahead=Ahead, start=Py_ssize_t, i=Py_ssize_t, k=Py_ssize_t)
    cdef int write_granted(self, long long[::1] scheduled) except -1
