# C types of kvfast/_core/manager.py.
cimport cython
from kvfast._compiled.checked cimport Checked
from kvfast._compiled.demand cimport Demand
from kvfast._compiled.request cimport FastRequest


cdef class FastManager(Checked):
    @cython.locals(mine=FastRequest, tokens="long long")
    cdef object do_get_computed_blocks(self, request)
    @cython.locals(mine=FastRequest, length="long long")
    cdef object do_find_longest_cache_hit_per_group(self, request, max_hit_length_tokens)
    cdef object do_allocate_slots(self, request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens, num_external_computed_tokens, delay_cache_blocks, num_encoder_tokens, full_sequence_must_fit, reserved_blocks, has_scheduled_reqs)
    @cython.locals(computed="long long", row=int, num_hits="long long", local="long long", most="long long", skip_at="long long", watermark="long long", verified="long long")
    cdef object grant(self, FastRequest request, list hits, long long new, long long new_computed, long long lookahead, long long external, long long encoder, long long reserved, bint caches, bint whole_must_fit, bint is_beside_others)
    @cython.locals(demand=Demand)
    cdef object do_get_num_blocks_to_allocate(self, request, num_tokens, total_computed_tokens, num_tokens_main_model, num_encoder_tokens, apply_admission_cap)
    cdef object do_cache_blocks(self, request, num_computed_tokens)
    cdef object do_cache_partial_block(self, request, group, num_tokens)
    cdef object do_evict_blocks(self, block_ids)
    cdef object do_reset_prefix_cache(self)
    @cython.locals(mine=FastRequest, row=int)
    cdef object do_free(self, request)
    @cython.locals(mine=FastRequest, row=int, ids=list)
    cdef object do_pop_blocks_for_free(self, request)
    cdef object do_free_blocks(self, block_ids)
    @cython.locals(row=int)
    cdef object do_remove_skipped_blocks(self, request, total_computed_tokens)
    cdef object do_get_num_common_prefix_blocks(self, request)
    cdef object do_get_blocks(self, request)
    cdef object do_get_unhashed_block_ids(self, request)
    @cython.locals(facts=list)
    cdef object do_take_events(self)
    cdef object do_take_new_block_ids(self)
    cdef object do_make_prefix_cache_stats(self)
    cdef object do_take_residency_samples(self)
    cdef object do_new_step_starts(self)
    cdef object do_append_tokens(self, request, token_ids)
    cdef object do_snapshot(self)
