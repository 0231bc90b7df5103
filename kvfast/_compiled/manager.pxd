# C types of kvfast/_core/manager.py. Those of public methods follow from what they call.
cimport cython
from kvfast._compiled cimport withdrawing
from kvfast._compiled.calls cimport Calls
from kvfast._compiled.checks cimport Checks
from kvfast._compiled.core cimport Core
from kvfast._compiled.turn cimport Turn


@cython.final
cdef class FastManager:
    cdef readonly Turn turn
    cdef readonly object plan, config
    cdef Core core
    cdef Checks checks
    cdef Calls calls
    cdef bint is_made

    cdef bint is_ready(self) noexcept
    cdef int check_sound(self) except -1
    cdef int enter(self) except -1
