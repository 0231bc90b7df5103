# C types of kvfast/engines/vllm/loops.py.
cimport cython
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled.batch cimport FastBatch
from kvfast._compiled.request cimport FastRequest

cdef int AHEAD, PROMPT, ITEMS, LAST, LACKS, DONE, GOAL, LATER, FLYING
cdef int TOOK, DUE, STOP, END, ALWAYS, PLAIN, CLIENT, WIDTH


@cython.final
cdef class Seats:
    cdef readonly long long longest, hash_size, ahead, each
    cdef readonly bint has_drafts, has_later
    cdef readonly list requests, names, mine, members, known, sampled, hashes, stops
    cdef readonly object handles
    cdef public object split
    cdef public FastBatch batch
    cdef public bint in_flight, staggers
    cdef long long[:, ::1] notes
    cdef dict last_step
    cdef long long last_count, touched

    cpdef Seats nobody(self)
    @cython.locals(first=Py_ssize_t, i=Py_ssize_t, one=dict)
    cpdef join(self, list requests, list handles, list mine)
    @cython.locals(old="long long[:, ::1]", number=Py_ssize_t, i=Py_ssize_t, column=int)
    cpdef make_room(self)
    @cython.locals(one=dict, notes="long long[:, ::1]", prompt="long long")
    cpdef note(self, Py_ssize_t i)
    cpdef note_due(self, Py_ssize_t i)
    @cython.locals(known=list, outputs=list, notes="long long[:, ::1]", number="long long")
    cpdef bint append(self, Py_ssize_t i, object token) except -1
    cpdef Py_ssize_t plain(self, Py_ssize_t i) except? -1
    cpdef Py_ssize_t client(self, Py_ssize_t i) except? -1
    cpdef int note_plain(self, Py_ssize_t i) except -1
    @cython.locals(i=Py_ssize_t)
    cpdef forget_plain(self)
    @cython.locals(i=Py_ssize_t, column=int)
    cpdef drop(self, Py_ssize_t place, set forgotten)
    @cython.locals(place=Py_ssize_t)
    cpdef Py_ssize_t keep(self, list running, set forgotten) except -1
    @cython.locals(left="long long", chosen=Chosen, counts=list, drafts=dict, most="long long", same="long long", i=Py_ssize_t, one=dict, spec=list, known=list, done="long long", later="long long", goal="long long", count="long long", num_drafts=Py_ssize_t)
    cpdef Chosen choose(self, long long budget, long long threshold, long long step)
    @cython.locals(end=Py_ssize_t, i=Py_ssize_t, one=dict, known=list)
    cpdef int read_ahead(self, Py_ssize_t first) except -1
    @cython.locals(found=dict, place=Py_ssize_t)
    cpdef dict scheduled(self, Chosen chosen)
    @cython.locals(due=list, num_tokens=list, hashes=list, notes="long long[:, ::1]", fields="long long[::1]", handles="long long[::1]", i=Py_ssize_t, k=Py_ssize_t, length="long long", first=Py_ssize_t, end=Py_ssize_t, mine=FastRequest)
    cpdef tuple make_equal(self, Chosen chosen)
    @cython.locals(i=Py_ssize_t, one=dict, notes="long long[:, ::1]")
    cpdef read(self, Py_ssize_t first, Py_ssize_t place)
    @cython.locals(i=Py_ssize_t, k=Py_ssize_t, one=dict, count="long long", later="long long", after="long long", is_chunk=bint)
    cpdef advance(self, list counts, dict drafts, set prefills, list placeholders, long long eligible_at)


@cython.final
cdef class Chosen:
    cdef readonly Seats seats
    cdef readonly list names, counts, computed, outputs, skipped
    cdef readonly object handles
    cdef readonly long long same, most, total
    cdef readonly dict drafts

    @cython.locals(next_place=Py_ssize_t)
    cdef int skip_to(self, Py_ssize_t place) except -1
    cdef object those(self, object values)
    cpdef list requests(self)
    @cython.locals(got=list, handles="long long[::1]", place=Py_ssize_t, last="long long", k=Py_ssize_t, mine=tuple, blocks=list)
    cpdef list granted(self, int[:, ::1] rows, Py_ssize_t num_rows, Py_ssize_t num_groups)
