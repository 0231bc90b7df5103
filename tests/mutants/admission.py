"""Mutants of allocation: watermark, reserved blocks, slots, what must fit (KV-MGR-3 …)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvref.allocation import Allocator
from kvref.groups.base import Demand
from kvref.manager import ReferenceManager
from kvref.request import Allocation
from kvspec.blocks import KVCacheBlocks
from kvspec.request import Request, RequestStatus
from tests.mutants.make import classes_in


class WatermarkRoundsUp(Allocator):
    """KV-MGR-9: a part of a block counts as a block."""

    @property
    def watermark_blocks(self) -> int:
        return math.ceil(self.config.watermark * self.config.kv_cache.num_blocks)


class WatermarkWithoutNull(Allocator):
    """KV-MGR-9: the null block is left out of the product."""

    @property
    def watermark_blocks(self) -> int:
        return int(self.config.watermark * (self.config.kv_cache.num_blocks - 1))


class WatermarkForAll(Allocator):
    """KV-MGR-9: running requests are held back, too."""

    def watermark(self, asked: Allocation) -> int:
        return self.watermark_blocks if asked.has_scheduled_reqs else 0


class WatermarkAlways(Allocator):
    """KV-MGR-9: a request that would be alone is held back, too."""

    def watermark(self, asked: Allocation) -> int:
        return super().watermark(replace(asked, has_scheduled_reqs=True))


class WatermarkNotForPreempted(Allocator):
    """KV-MGR-9: a preempted request is no newcomer."""

    def watermark(self, asked: Allocation) -> int:
        if asked.request.status is RequestStatus.PREEMPTED:
            return 0
        return super().watermark(asked)


class ChangesAllocation(ReferenceManager):
    """Not broken by itself: lets a mutant change the arguments of an allocation."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        how = self.changed(request, num_new_tokens, how)
        return super().allocate_slots(request, num_new_tokens, **how)

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        """The arguments in force."""
        return how


class ReservedBlocksAreTaken(ChangesAllocation):
    """KV-MGR-7: reserved blocks are not left alone."""

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "reserved_blocks": 0}


class OneBlockMustStay(ChangesAllocation):
    """KV-MGR-7: a request that would take the last free block is refused."""

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "reserved_blocks": how.get("reserved_blocks", 0) + 1}


class NobodyMustFit(ChangesAllocation):
    """KV-MGR-5: full_sequence_must_fit is ignored."""

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "full_sequence_must_fit": False}


class AllMustFit(ChangesAllocation):
    """KV-MGR-5: every request must fit with its whole sequence."""

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "full_sequence_must_fit": True}


class LookaheadIsForgotten(ChangesAllocation):
    """KV-MGR-7: lookahead tokens get no slots."""

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "num_lookahead_tokens": 0}


class LoadsAreCachedAtOnce(ChangesAllocation):
    """KV-MGR-10: blocks of a load that is under way are cached before it arrived."""

    def changed(self, request: Request, num_new_tokens: int, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "delay_cache_blocks": False}


class CachedOneStepLater(ChangesAllocation):
    """KV-MGR-10: only what was computed before the step is cached."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        how = {**how, "delay_cache_blocks": True}
        answer = super().allocate_slots(request, num_new_tokens, **how)
        if answer is not None and self.config.enable_caching:
            self.coordinator.cache_blocks(self.own(request), request.num_computed_tokens)
        return answer


class WholeFitsByNewTokens(Allocator):
    """KV-MGR-5: only the tokens of this step must fit."""

    def whole_fits(self, asked: Allocation, demand: Demand, watermark: int) -> bool:
        return self.need(asked, demand) + watermark <= self.pool.num_free_blocks


class WholeFitsWithoutWatermark(Allocator):
    """KV-MGR-5: the whole sequence may use up the watermark."""

    def whole_fits(self, asked: Allocation, demand: Demand, watermark: int) -> bool:
        return super().whole_fits(asked, demand, 0)


class WholeFitsExactlyIsTooMuch(Allocator):
    """KV-MGR-5: a sequence that needs all free blocks is refused."""

    def whole_fits(self, asked: Allocation, demand: Demand, watermark: int) -> bool:
        return super().whole_fits(asked, demand, watermark + 1)


class WholeFitsAfterRelease(Allocator):
    """KV-MGR-5: skipped blocks are released before it is seen whether the sequence fits."""

    def whole_fits(self, asked: Allocation, demand: Demand, watermark: int) -> bool:
        self.coordinator.remove_skipped_blocks(asked.name, demand.skip_at_tokens)
        return super().whole_fits(asked, demand, watermark)


class SlotsBeyondTheLongest(Allocator):
    """KV-MGR-7: lookahead slots are made beyond max_model_len, too."""

    def demand(self, asked: Allocation) -> Demand:
        demand = super().demand(asked)
        slots = demand.num_main_tokens + asked.num_lookahead_tokens
        return replace(demand, num_slots_tokens=max(slots, demand.num_slots_tokens))


class ExternalTokensAreNotComputed(Allocator):
    """KV-MGR-4: slots are made as if no external tokens came."""

    def demand(self, asked: Allocation) -> Demand:
        demand = super().demand(asked)
        computed = asked.num_local_tokens + asked.num_new_tokens
        slots = min(computed + asked.num_lookahead_tokens, self.longest)
        return replace(demand, num_slots_tokens=slots)


class LookaheadIsVerified(Allocator):
    """KV-MGR-4, KV-MAMBA-6: lookahead tokens count as tokens of the main model."""

    def demand(self, asked: Allocation) -> Demand:
        demand = super().demand(asked)
        return replace(demand, num_main_tokens=demand.num_main_tokens + asked.num_lookahead_tokens)


class WindowAfterTheStep(Allocator):
    """KV-MGR-6: windows are looked at where the new tokens end."""

    def demand(self, asked: Allocation) -> Demand:
        demand = super().demand(asked)
        return replace(demand, skip_at_tokens=demand.skip_at_tokens + asked.num_new_tokens)


class EncoderTokensAreForgotten(Allocator):
    """KV-CROSS-1: the number of encoder tokens is not passed on."""

    def demand(self, asked: Allocation) -> Demand:
        return super().demand(replace(asked, num_encoder_tokens=0))


class NeedIsCapped(ReferenceManager):
    """KV-MGR-18: the need that is asked for is always that of admission."""

    def get_num_blocks_to_allocate(self, request: Request, **how: Any) -> int:
        return super().get_num_blocks_to_allocate(request, **{**how, "apply_admission_cap": True})


class NeedReleases(ReferenceManager):
    """KV-MGR-18: asking for the need releases what the request no longer reads."""

    def get_num_blocks_to_allocate(self, request: Request, **how: Any) -> int:
        name = self.own(request).request_id
        self.coordinator.remove_skipped_blocks(name, how["total_computed_tokens"])
        return super().get_num_blocks_to_allocate(request, **how)


MUTANTS = classes_in(__name__)
