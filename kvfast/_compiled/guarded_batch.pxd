# C types of kvfast/_core/guarded_batch.py.
from kvfast._compiled.batch cimport FastBatch


cdef class GuardedBatch(FastBatch):
    cdef int leave(self) except -1
