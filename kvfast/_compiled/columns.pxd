# C types of kvfast/_core/columns.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled cimport record_fields as record
from kvfast._compiled.key_map cimport KeyMap
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.tables cimport Tables


@cython.final
cdef class PoolColumns:
    cdef BlockPool pool
    cdef KeyMap keys
    cdef Tables tables
    cdef long long hash_block_size

    @cython.locals(pool=BlockPool, keys=KeyMap, n="long long", width="long long", refs="int[::1]", covered="long long[::1]", count="long long", block="long long", entry="long long", blocks="int[::1]", groups="int[::1]", words="unsigned long long[::1]", numbers="int[::1]", k="long long")
    cpdef object shown(self, object rest)
    @cython.locals(out="int[::1]", block="long long", i="long long")
    cpdef object queue(self)
    @cython.locals(keys=KeyMap, entry="long long", after="long long")
    cpdef list shared(self)
    @cython.locals(refs="int[::1]", covered="long long[::1]", block="long long")
    cpdef fill(self, object columns, object popped, list reserved)
    @cython.locals(blocks="int[::1]", width="long long", groups="int[::1]", words="unsigned long long[::1]", count="long long", entries="int[::1]", is_shared="unsigned char[::1]", rings="int[::1]", at="long long", i="long long", last="long long", k="long long", block="long long", entry="long long", head="long long")
    cpdef fill_keys(self, object columns)
    @cython.locals(n="long long", refs="int[::1]", covered="long long[::1]", queue="int[::1]", held="int[::1]", row="long long", g="long long", at="long long", start="long long", i="long long", block="long long")
    cpdef check_counts(self, object columns, object popped)
    @cython.locals(blocks="int[::1]", groups="int[::1]", rings="int[::1]", count="long long", n="long long", size="long long", last="long long", k="long long", at="long long", end="long long", i="long long")
    cpdef check_keys(self, object columns)


@cython.locals(entry="long long")
cdef list ring_of(KeyMap keys, long long head)
