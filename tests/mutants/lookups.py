"""Mutants of looking up: what may hit, what is counted, what is changed (KV-MGR-1, KV-MGR-2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.request import Request, RequestStatus
from kvspec.stats import PrefixCacheStats
from tests.mutants.make import classes_in


class LastTokenMayHit(ReferenceManager):
    """KV-MGR-1: a look-up may answer all tokens of the request."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        own = self.own(request)
        if not self.config.enable_caching or own.input.skip_reading_cache:
            return super().get_computed_blocks(request)
        return self.coordinator.longest_hit(own, own.num_tokens)


class LastTwoTokensAreComputed(ReferenceManager):
    """KV-MGR-1: a look-up leaves out one token too many."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        own = self.own(request)
        if hit.hit_length_tokens < own.num_tokens - 1:
            return hit
        return self.coordinator.longest_hit(own, max(own.num_tokens - 2, 0))


class LookUpMovesBlocks(ReferenceManager):
    """KV-MGR-2: free blocks of a hit move to the back of the queue when they are looked up."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        for block in (block for blocks in hit.blocks.groups for block in blocks):
            if self.pool.is_free(block):
                self.pool.free_queue.remove(block)
                self.pool.free_queue.append(block)
        return hit


class LookUpHoldsBlocks(ReferenceManager):
    """KV-MGR-2: a look-up takes the references that the allocation should take."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        for blocks in hit.blocks.groups:
            self.pool.touch(blocks)
        return hit


class EverybodyReads(ReferenceManager):
    """KV-MGR-2: a request that skips reading gets a hit all the same."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        own = self.own(request)
        whole, own.input = own.input, replace(own.input, skip_reading_cache=False)
        hit = super().get_computed_blocks(request)
        own.input = whole
        return hit


class SkippedReadsAreCounted(ReferenceManager):
    """KV-MGR-2, KV-STAT-1: a look-up that is skipped counts as one without a hit."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        own = self.own(request)
        if own.input.skip_reading_cache and self.config.log_stats:
            self.lookups.record(own.num_tokens, 0, own.num_preemptions > 0)
        return super().get_computed_blocks(request)


class CountsWithoutCaching(ReferenceManager):
    """KV-MGR-2, KV-STAT-1: look-ups are counted although caching is off."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        own = self.own(request)
        if not self.config.enable_caching and self.config.log_stats:
            self.lookups.record(own.num_tokens, 0, own.num_preemptions > 0)
        return super().get_computed_blocks(request)


class PreemptedStartAnew(ReferenceManager):
    """KV-MGR-17: a preempted request computes everything again."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        if request.num_preemptions == 0:
            return hit
        return PrefixHit(KVCacheBlocks.empty(len(self.groups)), 0)


class OneGroupIsAlignedTwice(ReferenceManager):
    """KV-COORD-2: hits of a single group end on every second block."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        if len(self.groups) != 1 or hit.hit_length_tokens // self.groups[0].block_size % 2 == 0:
            return hit
        shorter = hit.hit_length_tokens - self.groups[0].block_size
        return PrefixHit(KVCacheBlocks((hit.blocks.groups[0][:-1],)), shorter)


class PreemptedByStatus(ReferenceManager):
    """KV-STAT-2: a resumed request counts as preempted only while its status says so."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        number = request.num_preemptions
        request.num_preemptions = int(request.status is RequestStatus.PREEMPTED)
        hit = super().get_computed_blocks(request)
        request.num_preemptions = number
        return hit


class StatisticsThoughOff(ReferenceManager):
    """KV-STAT-3: with log_stats off empty statistics are answered, not None."""

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        return self.lookups.take()


class PerGroupBeyondTheText(ReferenceManager):
    """KV-COORD-9: a look-up per group leaves out the last token, as other look-ups do."""

    def find_longest_cache_hit_per_group(self, request: Request, max_hit_length_tokens: int) -> Any:
        shorter = min(max_hit_length_tokens, max(request.num_tokens - 2, 0))
        return super().find_longest_cache_hit_per_group(request, shorter)


MUTANTS = classes_in(__name__)
