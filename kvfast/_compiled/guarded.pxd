# C types of kvfast/_core/guarded.py: none of its own.
from kvfast._compiled.manager cimport FastManager


cdef class GuardedManager(FastManager):
    pass
