"""Mutants of allocation: watermark, reserved blocks, slots, what must fit (KV-MGR-3 …)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvref.arguments import own_request
from kvref.groups.base import Demand
from kvref.manager import ReferenceManager
from kvref.request import ReferenceRequest
from kvspec.blocks import KVCacheBlocks
from kvspec.request import Request, RequestStatus
from tests.mutants.make import classes_in


class WatermarkRoundsUp(ReferenceManager):
    """KV-MGR-9: a part of a block counts as a block."""

    @property
    def watermark_blocks(self) -> int:
        return math.ceil(self.config.watermark * self.config.kv_cache.num_blocks)


class WatermarkWithoutNull(ReferenceManager):
    """KV-MGR-9: the null block is left out of the product."""

    @property
    def watermark_blocks(self) -> int:
        return int(self.config.watermark * (self.config.kv_cache.num_blocks - 1))


class WatermarkForAll(ReferenceManager):
    """KV-MGR-9: running requests are held back, too."""

    def _watermark(self, request: ReferenceRequest, has_scheduled_reqs: bool) -> int:
        return self.watermark_blocks if has_scheduled_reqs else 0


class WatermarkAlways(ReferenceManager):
    """KV-MGR-9: a request that would be alone is held back, too."""

    def _watermark(self, request: ReferenceRequest, has_scheduled_reqs: bool) -> int:
        return super()._watermark(request, True)


class WatermarkNotForPreempted(ReferenceManager):
    """KV-MGR-9: a preempted request is no newcomer."""

    def _watermark(self, request: ReferenceRequest, has_scheduled_reqs: bool) -> int:
        if request.status is RequestStatus.PREEMPTED:
            return 0
        return super()._watermark(request, has_scheduled_reqs)


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
            self.coordinator.cache_blocks(own_request(self, request), request.num_computed_tokens)
        return answer


class WholeFitsByNewTokens(ReferenceManager):
    """KV-MGR-5: only the tokens of this step must fit."""

    def _whole_fits(
        self, request: ReferenceRequest, hits: KVCacheBlocks, demand: Demand, watermark: int
    ) -> bool:
        need = self.coordinator.num_blocks_needed(request.request_id, hits, demand)
        return need + watermark <= self.num_free_blocks


class WholeFitsWithoutWatermark(ReferenceManager):
    """KV-MGR-5: the whole sequence may use up the watermark."""

    def _whole_fits(
        self, request: ReferenceRequest, hits: KVCacheBlocks, demand: Demand, watermark: int
    ) -> bool:
        return super()._whole_fits(request, hits, demand, 0)


class WholeFitsExactlyIsTooMuch(ReferenceManager):
    """KV-MGR-5: a sequence that needs all free blocks is refused."""

    def _whole_fits(
        self, request: ReferenceRequest, hits: KVCacheBlocks, demand: Demand, watermark: int
    ) -> bool:
        return super()._whole_fits(request, hits, demand, watermark + 1)


class WholeFitsAfterRelease(ReferenceManager):
    """KV-MGR-5: skipped blocks are released before it is seen whether the sequence fits."""

    def _whole_fits(
        self, request: ReferenceRequest, hits: KVCacheBlocks, demand: Demand, watermark: int
    ) -> bool:
        self.coordinator.remove_skipped_blocks(request.request_id, demand.skip_at_tokens)
        return super()._whole_fits(request, hits, demand, watermark)


class SlotsBeyondTheLongest(ReferenceManager):
    """KV-MGR-7: lookahead slots are made beyond max_model_len, too."""

    def _demand(
        self,
        request: ReferenceRequest,
        local: int,
        external: int,
        new: int,
        ahead: int,
        encoder: int,
    ) -> Demand:
        demand = super()._demand(request, local, external, new, ahead, encoder)
        slots = min(local + external, self.config.max_model_len_tokens) + new + ahead
        return replace(demand, num_slots_tokens=max(slots, demand.num_slots_tokens))


class ExternalTokensAreNotComputed(ReferenceManager):
    """KV-MGR-4: slots are made as if no external tokens came."""

    def _demand(
        self,
        request: ReferenceRequest,
        local: int,
        external: int,
        new: int,
        ahead: int,
        encoder: int,
    ) -> Demand:
        demand = super()._demand(request, local, external, new, ahead, encoder)
        slots = min(local + new + ahead, self.config.max_model_len_tokens)
        return replace(demand, num_slots_tokens=slots)


class LookaheadIsVerified(ReferenceManager):
    """KV-MGR-4, KV-MAMBA-6: lookahead tokens count as tokens of the main model."""

    def _demand(
        self,
        request: ReferenceRequest,
        local: int,
        external: int,
        new: int,
        ahead: int,
        encoder: int,
    ) -> Demand:
        demand = super()._demand(request, local, external, new, ahead, encoder)
        return replace(demand, num_main_tokens=demand.num_main_tokens + ahead)


class WindowAfterTheStep(ReferenceManager):
    """KV-MGR-6: windows are looked at where the new tokens end."""

    def _demand(
        self,
        request: ReferenceRequest,
        local: int,
        external: int,
        new: int,
        ahead: int,
        encoder: int,
    ) -> Demand:
        demand = super()._demand(request, local, external, new, ahead, encoder)
        return replace(demand, skip_at_tokens=demand.skip_at_tokens + new)


class EncoderTokensAreForgotten(ReferenceManager):
    """KV-CROSS-1: the number of encoder tokens is not passed on."""

    def _demand(
        self,
        request: ReferenceRequest,
        local: int,
        external: int,
        new: int,
        ahead: int,
        encoder: int,
    ) -> Demand:
        return super()._demand(request, local, external, new, ahead, 0)


class NeedIsCapped(ReferenceManager):
    """KV-MGR-18: the need that is asked for is always that of admission."""

    def get_num_blocks_to_allocate(self, request: Request, **how: Any) -> int:
        return super().get_num_blocks_to_allocate(request, **{**how, "apply_admission_cap": True})


class NeedReleases(ReferenceManager):
    """KV-MGR-18: asking for the need releases what the request no longer reads."""

    def get_num_blocks_to_allocate(self, request: Request, **how: Any) -> int:
        name = own_request(self, request).request_id
        self.coordinator.remove_skipped_blocks(name, how["total_computed_tokens"])
        return super().get_num_blocks_to_allocate(request, **how)


MUTANTS = classes_in(__name__)
