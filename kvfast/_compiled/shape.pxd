# C types of kvfast/_core/shape.py.
cimport cython
from kvfast._compiled cimport kind_fields as kinds
from kvfast._compiled.kinds cimport first_visible, never


@cython.final
cdef class Shape:
    cdef readonly int num_groups
    cdef readonly long long alignment, scheduler_block, retention
    cdef long long ahead, num_last
    cdef bint null_prefix_is_hit, looks_beyond, replays_before_drop, drafts_hold_states, some_group_drops, replays
    cdef int[::1] kind
    cdef long long[::1] block_size, hashes_per_block, reach, extra, drafted
    cdef int[::1] drops, is_zeroed, tails, returns, has_tokens, takes_part
    cdef long long[::1] cap
    cdef readonly int num_attention
    cdef int[::1] first_member, members

    cdef bint is_full(self, int group) noexcept nogil
    cdef bint keeps_all(self, int group) noexcept nogil
    cdef bint is_mamba(self, int group) noexcept nogil
    cdef bint is_aligned(self, int group) noexcept nogil
    cdef bint holds_tokens(self, int group) noexcept nogil
    cdef bint is_cached(self, int group) noexcept nogil
    cdef long long cdiv(self, long long a, long long b) noexcept nogil
    @cython.locals(tokens="long long")
    cdef long long skipped(self, int group, long long computed) noexcept nogil
    @cython.locals(tokens="long long")
    cdef long long unread(self, int group, long long computed) noexcept nogil
    cdef long long gap_end(self, int group, long long prompt, long long computed) noexcept nogil
    @cython.locals(kind=int)
    cdef long long first_read(self, int group, long long prompt, long long computed) noexcept nogil
    @cython.locals(reach="long long")
    cdef bint is_window_beyond(self, int group, long long at, long long computed) noexcept nogil
    @cython.locals(tokens="long long")
    cdef long long run_length(self, int group, bint drop) noexcept nogil
    @cython.locals(kind=int, segment="long long", drop=bint)
    cpdef bint caches_all(self, int group)
    @cython.locals(full="long long")
    cdef long long full_blocks(self, int group, long long tokens, long long num_hashes) noexcept nogil
    @cython.locals(unit="long long")
    cdef long long checkpoint(self, int group, long long prompt_tokens) noexcept nogil
    @cython.locals(end="long long", drop=bint, last="long long")
    cdef bint is_in_tail(self, int group, long long index, long long tokens) noexcept nogil
    @cython.locals(size="long long", replayed="long long", replay="long long", replay_end="long long", block="long long", end="long long", shift="long long", need="long long", segment="long long", per_segment="long long")
    cdef bint is_worth_caching(self, int group, long long index, long long prompt_tokens, long long junction) noexcept nogil
