# C types of kvfast/_core/moving.py.
cimport cython
from kvfast._compiled cimport probing_fields as probing
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.pool cimport BlockPool


@cython.locals(entry="long long")
cdef int move_all(BlockPool pool, long long source, long long block) except -1
@cython.locals(k="long long", mine="long long", theirs="long long")
cdef void move_entry(KeyMap keys, long long entry, long long target) noexcept nogil
@cython.locals(i="long long")
cdef long long head_like(KeyMap keys, long long entry) noexcept nogil
@cython.locals(k="long long", group=int)
cdef bint is_same_key(KeyMap keys, long long left, long long right) noexcept nogil
