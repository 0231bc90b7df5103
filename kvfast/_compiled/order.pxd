# C types of kvfast/_core/order.py.
cimport cython
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.tables cimport Tables


@cython.final
cdef class Order:
    cdef KeyMap keys
    cdef bint by_priority
    cdef long long num_uses, num_steps, now
    cdef int num_blocks
    cdef long long[::1] ranks, levels
    cdef unsigned char[::1] waits
    cdef int[::1] firsts
    cdef long long low, high, num_pinned

    cdef void begin(self, long long block, long long priority) noexcept nogil
    @cython.locals(place="long long")
    cdef void begin_run(self, Tables tables, long long start, long long end, long long priority) noexcept nogil
    @cython.locals(place="long long", block="long long")
    cdef void use(self, Tables tables, long long start, long long end, long long priority) noexcept nogil
    cdef void move(self, long long source, long long block) noexcept nogil
    cdef long long level_of(self, long long block) noexcept nogil
    @cython.locals(low="long long", high="long long", middle="long long")
    cdef long long place_of(self, long long level) noexcept nogil
    @cython.locals(at="long long", after="long long")
    cdef long long join(self, long long block) noexcept nogil
    @cython.locals(at="long long", level="long long", i="long long")
    cdef long long enter(self, long long block) noexcept nogil
    @cython.locals(first="long long")
    cdef void pin(self, long long block) noexcept nogil
    @cython.locals(at="long long", level="long long", after="long long", i="long long")
    cdef void leave(self, long long block) noexcept nogil
    cdef long long too_old(self) noexcept nogil
    cdef int clear(self) except -1
    @cython.locals(found="long long[::1]", block="long long")
    cpdef tuple shown(self)
    @cython.locals(block="long long")
    cpdef restore(self, ranks, queue)
