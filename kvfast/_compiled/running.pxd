# C types of kvfast/_core/running.py.
cimport cython
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled cimport objects
from kvfast._compiled cimport probing_fields as probing
from kvfast._compiled.core cimport Core
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.objects cimport Rows
from kvfast._compiled.registry cimport Registry
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.tables cimport Tables
from kvfast._compiled.turn cimport Turn

cdef long long MANY
cdef int ASKED, PLAIN, FILLS


@cython.final
cdef class Running:
    cdef Core core
    cdef Turn turn
    cdef Registry registry
    cdef Entries entries
    cdef Rows rows
    cdef int num_groups
    cdef bint is_plain
    cdef long long block_size
    cdef bint caches
    cdef object running
    cdef int[::1] left_at
    cdef Py_ssize_t num_left, num_asked, num_filled
    cdef long long lookahead, granted
    cdef bint refused, notes_all, is_ahead

    cdef int make_room(self) except -1
    @cython.locals(entries=Entries, i=Py_ssize_t, k=Py_ssize_t)
    cdef bint may_all_continue(self) except -1
    cdef void leave(self, Py_ssize_t i, int way) noexcept nogil
    @cython.locals(entries=Entries, i=Py_ssize_t)
    cdef int choose_ways(self) except -1
    cdef void ask(self, Py_ssize_t i) noexcept nogil
    @cython.locals(entries=Entries, handles="long long *", counts="long long *", fields="long long *", serials="long long *", lookahead="long long", notes_all=bint, granted="long long", i=Py_ssize_t, at=Py_ssize_t, row="long long", computed="long long", after="long long")
    cdef int count_ahead(self) except -1
    @cython.locals(registry=Registry, tables=Tables, handle="long long", at=Py_ssize_t, size="long long", length="long long", cached="long long", held="long long", fills=bint, last="long long")
    cdef bint only_counts(self, Py_ssize_t i, long long row, long long computed, long long after) noexcept
    @cython.locals(tables=Tables, registry=Registry, at=Py_ssize_t, length="long long", cached="long long", until="long long")
    cdef void note_reach(self, Py_ssize_t handle, long long row) noexcept
    cdef void note(self, Py_ssize_t i, long long row, long long after) noexcept nogil
    @cython.locals(entries=Entries, requests=list, core=Core, per="long long", width="long long", number="long long", first="long long", k=Py_ssize_t, i=Py_ssize_t, request=FastRequest)
    cdef int read_ahead(self) except -1
    @cython.locals(entries=Entries, i=Py_ssize_t, k=Py_ssize_t, request=FastRequest)
    cdef int undo(self) except -1
    @cython.locals(registry=Registry, entries=Entries, i=Py_ssize_t, at=Py_ssize_t, computed="long long")
    cdef bint may_rewind(self) except -1
    @cython.locals(at=Py_ssize_t)
    cdef int set_computed_at(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(registry=Registry, entries=Entries, i=Py_ssize_t, at=Py_ssize_t, request=FastRequest)
    cdef int rewind_all(self) except -1
    cdef bint is_scheduled(self, FastRequest request) except -1
    @cython.locals(entries=Entries, core=Core, request=FastRequest, computed="long long", row=int, g=int, held="long long")
    cdef bint may_continue(self, Py_ssize_t i) except -1
    @cython.locals(entries=Entries, k=Py_ssize_t, i=Py_ssize_t, num_tokens="long long", goes_on=bint, granted="long long")
    cdef int continue_all(self) except -1
    @cython.locals(core=Core, request=FastRequest, row=int, local="long long")
    cdef bint go_on(self, Py_ssize_t i, long long num_tokens) except -1
    @cython.locals(core=Core, row=int, after="long long", size="long long", held="long long", slots="long long", needed="long long", request=FastRequest, end="long long", first="long long")
    cdef bint go_on_plain(self, Py_ssize_t i, long long watermark) except -1
    cdef int cache_until(self, int row, FastRequest request, long long computed) except -1
