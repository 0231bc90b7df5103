# C types of kvfast/_core/reports.py.
cimport cython
from kvfast._compiled.event_log cimport EventLog
from kvfast._compiled.lookup cimport Lookup
from kvfast._compiled.request cimport FastRequest


@cython.locals(g=int)
cdef int report_hit(EventLog log, Lookup lookup, FastRequest request, long long tokens) except -1
@cython.locals(size="long long", per="long long", num_hits="long long", end="long long", i="long long", number="long long", block=int)
cdef int report_group(EventLog log, Lookup lookup, FastRequest request, int g, long long tokens) except -1
