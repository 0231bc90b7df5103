# C types of kvfast/_core/manager.py.
cimport cython
from kvfast._compiled.checked cimport Checked
from kvfast._compiled.request cimport FastRequest


cdef class FastManager(Checked):
    @cython.locals(mine=FastRequest, tokens="long long")
    cpdef object get_computed_blocks(self, request)
