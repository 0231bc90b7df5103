# C types of kvfast/_core/calls.py.
cimport cython
from kvfast._compiled cimport following, reports
from kvfast._compiled.checks cimport Checks
from kvfast._compiled.core cimport Core
from kvfast._compiled.demand cimport Asked, Demand
from kvfast._compiled.pool cimport BlockPool
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.turn cimport Turn


@cython.final
cdef class Calls:
    cdef Core core
    cdef Checks checks
    cdef Turn turn
    cdef FastRequest used

    @cython.locals(mine=FastRequest)
    cdef FastRequest claim(self, request)
    cdef int leave(self) except -1
    @cython.locals(core=Core, tokens="long long")
    cdef object look_up(self, FastRequest request)
    @cython.locals(core=Core)
    cdef object look_up_per_group(self, FastRequest request, long long length)
    @cython.locals(checks=Checks, asked=Asked, mine=FastRequest, offered=list, num_hit="long long", caches=bint)
    cdef object allocate(self, request, hits, new, new_computed, lookahead, external, encoder, reserved, delays, whole_must_fit, is_beside_others)
    @cython.locals(core=Core, checks=Checks, tokens="long long", computed="long long", main="long long", encoder="long long", capped=bint, mine=FastRequest, row=int, demand=Demand, g=int, needs=list)
    cdef object need(self, request, num_tokens, computed_tokens, main_tokens, encoder_tokens, is_capped)
    @cython.locals(core=Core, checks=Checks, asked=Asked, new="long long", external="long long", computed="long long", row=int, num_hits="long long", local="long long", most="long long", skip_at="long long", verified="long long")
    cdef object grant(self, FastRequest request, list hits, long long new_computed, bint caches, bint is_beside_others)
    @cython.locals(mine=FastRequest)
    cdef object follow(self, request, num_tokens, hashes, num_prompt)
    @cython.locals(core=Core, row=int, limit="long long", g=int, held="long long")
    cdef object cache(self, FastRequest request, long long tokens)
    @cython.locals(core=Core, size="long long", hash_size="long long", row=int, slots="long long", limit="long long")
    cdef object cache_partial(self, FastRequest request, long long g, long long tokens)
    @cython.locals(core=Core)
    cdef object reset(self)
    cdef object free(self, FastRequest request)
    @cython.locals(row=int)
    cdef object remove_skipped(self, FastRequest request, long long computed)
    cdef object start_step(self)
    @cython.locals(core=Core, row=int, ids=list)
    cdef object pop(self, FastRequest request)
    @cython.locals(core=Core, row=int, g=int)
    cdef object common_prefixes(self, FastRequest request)
    @cython.locals(pool=BlockPool)
    cdef tuple unhashed(self, FastRequest request)
    @cython.locals(block="long long")
    cdef int evict(self, list blocks) except -1
    cdef object hold_blocks(self, list blocks)
    @cython.locals(popped=dict)
    cdef object free_blocks(self, list blocks)
    @cython.locals(facts=list)
    cdef object take_events(self)
    cdef object take_block_copies(self)
    cdef object take_new_block_ids(self)
    cdef object take_stats(self)
    @cython.locals(core=Core)
    cdef object count_admitted(self, FastRequest request, long long tokens)
