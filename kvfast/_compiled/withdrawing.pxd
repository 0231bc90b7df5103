# C types of kvfast/_core/withdrawing.py.
cimport cython
from kvfast._compiled.core cimport Core
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.turn cimport Turn


@cython.locals(row=int, g=int, whole="long long", at="long long", block=int)
cdef tuple withdraw(Core core, Turn turn, FastRequest request, long long tokens)
@cython.locals(g=int, block=int, other=int)
cdef tuple holders_behind(Core core, int row, long long tokens)
cdef bint has_any(Core core, int row, set marked) except -1
