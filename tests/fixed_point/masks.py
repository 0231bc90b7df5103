"""Broken choices of what is cached (KV-RET-*, KV-COORD-13)."""

from __future__ import annotations

from kvref.groups.base import cdiv, replay_boundary
from kvref.groups.mamba import MambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.hybrid import HybridCoordinator
from kvref.request import ReferenceRequest
from tests.fixed_point.twin import BOTH, RULE_TESTS, Twin


class RestatedMask(SlidingWindowGroup):
    """The mask of the reference, cut into the decisions that a twin gets wrong; not broken."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        step = self.step_tokens()
        if step > 0:
            per_step = step // self.block_size
            place = block_index - self.shift()
            if self.tail() >= per_step or (
                place >= 0 and place % per_step >= per_step - self.tail()
            ):
                return True
        if not self.keeps_replays():
            return False
        end = self.replay_end(request) // self.block_size + self.replay_shift()
        return end - self.tail() <= block_index < end

    def step_tokens(self) -> int:
        """KV-RET-1 … KV-RET-3; 0: no boundary but the replay's."""
        retention = self.context.retention_interval_tokens
        return self.context.alignment_tokens if retention is None else retention

    def tail(self) -> int:
        """KV-RET-1."""
        return self.run_length_blocks(self.drops_eagle_block)

    def shift(self) -> int:
        """KV-RET-1."""
        return 1 if self.drops_eagle_block else 0

    def keeps_replays(self) -> bool:
        """KV-RET-4."""
        return self.context.retention_interval_tokens is not None

    def replay_end(self, request: ReferenceRequest) -> int:
        """KV-RET-4."""
        return replay_boundary(request, self.context.alignment_tokens)

    def replay_shift(self) -> int:
        """KV-RET-4."""
        return self.shift()


class KeepsEverything(RestatedMask):
    """KV-RET-1: no block is passed over without retention."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        if self.context.retention_interval_tokens is None and self.tail() > 0:
            return True
        return super().is_worth_caching(block_index, request)


class TailWithoutTheDrop(RestatedMask):
    """KV-RET-1: an eagle tail is no longer than another."""

    def tail(self) -> int:
        return self.run_length_blocks(False)


class TailNotShifted(RestatedMask):
    """KV-RET-1: an eagle tail ends at the boundary, not one block behind it."""

    def shift(self) -> int:
        return 0

    def replay_shift(self) -> int:
        return super().shift()


class TailOneTooLong(RestatedMask):
    """KV-RET-1: cdiv(W, B) blocks before a boundary."""

    def tail(self) -> int:
        return cdiv(self.window, self.block_size) + self.shift()


class ZeroMeansNone(RestatedMask):
    """KV-RET-2: interval 0 keeps every boundary."""

    def step_tokens(self) -> int:
        return super().step_tokens() or self.context.alignment_tokens


class ZeroMeansNothing(RestatedMask):
    """KV-RET-2: interval 0 does not even keep the replay boundary."""

    def keeps_replays(self) -> bool:
        return bool(self.context.retention_interval_tokens)


class EveryBoundaryAllTheSame(RestatedMask):
    """KV-RET-3: an interval changes nothing."""

    def step_tokens(self) -> int:
        return self.context.alignment_tokens if super().step_tokens() else 0


class OneSegmentInTwo(RestatedMask):
    """KV-RET-3: one tail per 2·k tokens."""

    def step_tokens(self) -> int:
        retention = self.context.retention_interval_tokens
        return super().step_tokens() * (2 if retention else 1)


class NoReplayBoundary(RestatedMask):
    """KV-RET-4: only multiples of k are kept."""

    def keeps_replays(self) -> bool:
        return False


class ReplayOfTheWholePrompt(RestatedMask):
    """KV-RET-4: as if the last token of a prompt could hit."""

    def replay_end(self, request: ReferenceRequest) -> int:
        alignment = self.context.alignment_tokens
        return request.num_prompt_tokens // alignment * alignment


class ReplayOfGeneratedTokens(RestatedMask):
    """KV-RET-4: generated tokens move the boundary."""

    def replay_end(self, request: ReferenceRequest) -> int:
        alignment = self.context.alignment_tokens
        return (request.num_tokens - 1) // alignment * alignment


class ReplayNotShifted(RestatedMask):
    """KV-RET-4: in an eagle group the tail ends at the boundary."""

    def replay_shift(self) -> int:
        return 0


class StatesAreKept(MambaGroup):
    """KV-RET-5: retention does not touch states."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        return True


class StatesOfNoReplay(MambaGroup):
    """KV-RET-5: the state at the replay boundary is passed over."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        retention = self.context.retention_interval_tokens
        if retention is None:
            return True
        return retention > 0 and (block_index + 1) * self.block_size % retention == 0


class StatesShiftedWithEagle(MambaGroup):
    """KV-RET-5: an eagle group keeps the state one block later."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        return super().is_worth_caching(block_index - self.drops_eagle_block, request)


class CountStopsAtMaskedBlocks(SlidingWindowGroup):
    """KV-RET-6: the count goes up to the last block that was cached."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        super().cache_blocks(request, num_tokens)
        count = self.num_cached.get(request.request_id, 0)
        blocks = self.blocks_of(request.request_id)
        while count > 0 and not self.pool.keys[blocks[count - 1]]:
            count -= 1
        if request.request_id in self.num_cached:
            self.num_cached[request.request_id] = count


class CachesBeyondTheBoundary(HybridCoordinator):
    """KV-COORD-13: every full block is handed to the cache."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        for group in self.groups:
            group.cache_blocks(request, num_tokens)


class NoBlockMoreForEagle(HybridCoordinator):
    """KV-COORD-13: eagle groups stop at the boundary as well."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        for group in self.groups:
            group.cache_blocks(request, num_tokens // self.alignment * self.alignment)


class ABlockMoreForAll(HybridCoordinator):
    """KV-COORD-13: groups that drop nothing get the block behind the boundary too."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        aligned = num_tokens // self.alignment * self.alignment
        for group in self.groups:
            behind = min(num_tokens, aligned + group.block_size) if aligned else 0
            group.cache_blocks(request, behind)


class ABlockMoreFromTheStart(HybridCoordinator):
    """KV-COORD-13: eagle groups cache a first block before there is a boundary."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        aligned = num_tokens // self.alignment * self.alignment
        for group in self.groups:
            more = group.block_size if group.drops_eagle_block else 0
            group.cache_blocks(request, min(num_tokens, aligned + more))


TWINS: tuple[Twin, ...] = (
    Twin("KV-RET-1", KeepsEverything, SlidingWindowGroup, BOTH),
    Twin("KV-RET-1", TailWithoutTheDrop, SlidingWindowGroup, BOTH),
    Twin("KV-RET-1", TailNotShifted, SlidingWindowGroup, BOTH),
    Twin("KV-RET-1", TailOneTooLong, SlidingWindowGroup, BOTH),
    Twin("KV-RET-2", ZeroMeansNone, SlidingWindowGroup, BOTH),
    Twin("KV-RET-2", ZeroMeansNothing, SlidingWindowGroup, BOTH),
    Twin("KV-RET-3", EveryBoundaryAllTheSame, SlidingWindowGroup, BOTH),
    Twin("KV-RET-3", OneSegmentInTwo, SlidingWindowGroup, BOTH),
    Twin("KV-RET-4", NoReplayBoundary, SlidingWindowGroup, BOTH),
    Twin("KV-RET-4", ReplayOfTheWholePrompt, SlidingWindowGroup, BOTH),
    Twin("KV-RET-4", ReplayOfGeneratedTokens, SlidingWindowGroup, (RULE_TESTS,)),
    Twin("KV-RET-4", ReplayNotShifted, SlidingWindowGroup, BOTH),
    Twin("KV-RET-5", StatesAreKept, MambaGroup, BOTH),
    Twin("KV-RET-5", StatesOfNoReplay, MambaGroup, BOTH),
    Twin("KV-RET-5", StatesShiftedWithEagle, MambaGroup, BOTH),
    Twin("KV-RET-6", CountStopsAtMaskedBlocks, SlidingWindowGroup, (RULE_TESTS,)),
    Twin("KV-COORD-13", CachesBeyondTheBoundary, None, BOTH),
    Twin("KV-COORD-13", NoBlockMoreForEagle, None, BOTH),
    Twin("KV-COORD-13", ABlockMoreForAll, None, BOTH),
    Twin("KV-COORD-13", ABlockMoreFromTheStart, None, BOTH),
)
