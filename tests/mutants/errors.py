"""Mutants that accept what nobody may ask, or refuse it in the wrong way (KV-ERR-*)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from unittest import mock

from kvref import arguments
from kvref.manager import ReferenceManager
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.request import Request
from tests.mutants.make import classes_in

COUNTS = ("num_lookahead_tokens", "num_external_computed_tokens", "reserved_blocks")


def accept(*anything: Any, **more: Any) -> None:
    """A check that lets everything pass."""


class WithoutACheck(ReferenceManager):
    """Not broken by itself: `left_out` names a check of allocations that is not made."""

    left_out: ClassVar[str | None] = None

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        if self.left_out is None:
            return super().allocate_slots(request, num_new_tokens, **how)
        with mock.patch.object(arguments, self.left_out, accept):
            return super().allocate_slots(request, num_new_tokens, **how)


class AcceptsNoTokens(ReferenceManager):
    """KV-MGR-3: an allocation of nothing answers no blocks instead of an error."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        if num_new_tokens == 0 and not how.get("num_external_computed_tokens"):
            return KVCacheBlocks.empty(len(self.groups))
        return super().allocate_slots(request, num_new_tokens, **how)


class NegativeCountsAreZero(ReferenceManager):
    """KV-ERR-2: negative counts of an allocation are taken for 0."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        how = {name: max(value, 0) if name in COUNTS else value for name, value in how.items()}
        return super().allocate_slots(request, num_new_tokens, **how)


class NegativeTokensAreOne(ReferenceManager):
    """KV-ERR-2: less than no new tokens count as one."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        if num_new_tokens < 0:
            num_new_tokens = 1
        return super().allocate_slots(request, num_new_tokens, **how)


class HitsAreBelieved(WithoutACheck):
    """KV-MGR-8: hits are taken as they come: stale, null or of the wrong length."""

    left_out = "_check_hits"


class HitContentIsBelieved(WithoutACheck):
    """KV-MGR-8: only the length of a hit is checked, not which blocks it names."""

    left_out = "_check_hit_content"


class ComputedTokensAreBelieved(WithoutACheck):
    """KV-REQ-3: computed tokens need no slots."""

    left_out = "_check_computed"


class NullIsAHitAnywhere(WithoutACheck):
    """KV-MGR-8: null passes for a hit at a place that attention still reads."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        right = arguments._check_hit_content

        def lenient(group: Any, request: Any, blocks: Sequence[int], num_skipped: int) -> None:
            right(group, request, blocks, len(blocks))

        with mock.patch.object(arguments, "_check_hit_content", lenient):
            return ReferenceManager.allocate_slots(self, request, num_new_tokens, **how)


class ChecksHitsInAnotherWay(ReferenceManager):
    """Not broken by itself: what `check` makes of the check of hits."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        right = arguments._check_hits

        def checked(groups: Any, request: Any, hits: Any, num_tokens: int, **more: Any) -> None:
            self.check(right, groups, request, hits, num_tokens, **more)

        with mock.patch.object(arguments, "_check_hits", checked):
            return super().allocate_slots(request, num_new_tokens, **how)

    def check(self, right: Any, *given: Any, **how: Any) -> None:
        """As the reference does."""
        right(*given, **how)


class ShortListsNeedNoLoad(ChecksHitsInAnotherWay):
    """KV-MGR-8: a list of hits may be short where no load brings what it lacks."""

    def check(self, right: Any, *given: Any, **how: Any) -> None:
        right(*given, **{**how, "has_load": True})


class ShortListsAreRefused(ChecksHitsInAnotherWay):
    """KV-MGR-8: every list of hits must be as long as the others, beside a load as well."""

    def check(self, right: Any, *given: Any, **how: Any) -> None:
        right(*given, **{**how, "has_load": False})


class AllListsMayBeShort(ChecksHitsInAnotherWay):
    """KV-MGR-8: beside a load no list of hits need be as long as num_new_computed_tokens."""

    def check(self, right: Any, *given: Any, **how: Any) -> None:
        try:
            right(*given, **how)
        except InvalidArgumentError as error:
            if error.field != "num_new_computed_tokens":
                raise


class ShortListsAreBelieved(ChecksHitsInAnotherWay):
    """KV-MGR-8: nobody looks at what the blocks of a short list hold."""

    def check(self, right: Any, *given: Any, **how: Any) -> None:
        groups, request, hits, num_tokens = given
        seen = (
            () if len(blocks) * group.block_size < num_tokens and how["has_load"] else blocks
            for group, blocks in zip(groups, hits.groups, strict=True)
        )
        right(groups, request, KVCacheBlocks(tuple(seen)), num_tokens, **how)


class RunningRequestsTakeHits(ReferenceManager):
    """KV-GRP-9, KV-MGR-8: hits offered for a request that holds blocks are dropped silently."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        if self.coordinator.holds_blocks(self.own(request).request_id):
            how = {**how, "num_new_computed_tokens": 0, "new_computed_blocks": None}
        return super().allocate_slots(request, num_new_tokens, **how)


class TouchesBeforeItChecks(ReferenceManager):
    """KV-ERR-2: hits are touched before the other arguments are looked at."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        try:
            return super().allocate_slots(request, num_new_tokens, **how)
        except KVSpecError:
            hits = how.get("new_computed_blocks")
            known = (
                [b for blocks in hits.groups for b in blocks if b in range(1, 3)] if hits else []
            )
            self.pool.touch(known)
            raise


class ReleasesBeforeItChecks(ReferenceManager):
    """KV-ERR-2: an allocation that is refused as illegal has released skipped blocks."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        own = self.own(request)
        self.coordinator.remove_skipped_blocks(own.request_id, max(own.num_computed_tokens, 0))
        return super().allocate_slots(request, num_new_tokens, **how)


class RefusalIsAnError(ReferenceManager):
    """KV-ERR-1, KV-MGR-7: lack of blocks raises."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        answer = super().allocate_slots(request, num_new_tokens, **how)
        if answer is None:
            raise InvalidArgumentError("num_new_tokens", num_new_tokens, "fewer")
        return answer


class IdsAreIndices(ReferenceManager):
    """KV-ERR-3: ids are used as list indices, so -1 is the last block and others an IndexError."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            self.pool.forget(block)


class EvictsUpToTheWrongId(ReferenceManager):
    """KV-ERR-2, KV-ERR-3: blocks before one that does not exist are evicted."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            super().evict_blocks([block])


class WrongIdsArePassedOver(ReferenceManager):
    """KV-ERR-3: ids that no block has are ignored."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        known = range(self.config.kv_cache.num_blocks)
        super().evict_blocks([block for block in block_ids if block in known])


class WrongIdsAreValueErrors(ReferenceManager):
    """KV-ERR-2, KV-ERR-3: an id that no block has is an error without a type of the contract."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        try:
            super().evict_blocks(block_ids)
        except KVSpecError as error:
            raise ValueError(str(error)) from None


class UnpoppedBlocksAreFreed(ReferenceManager):
    """KV-POOL-9: returning what was not popped releases it from its owner."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        with mock.patch.object(arguments, "check_popped", accept):
            popped = [block for block in block_ids if block in self.popped]
            super().free_blocks(popped)
            held = [b for b in block_ids if b not in popped and b != NULL_BLOCK]
            self.pool.release([b for b in held if self.pool.ref_counts[b] > 0])


class UnpoppedBlocksAreIgnored(ReferenceManager):
    """KV-POOL-9: returning what was not popped does nothing."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        known = arguments.block_ids(block_ids, self.pool.num_blocks)
        super().free_blocks([block for block in known if block in self.popped])


class ReturnedUpToTheWrongOne(ReferenceManager):
    """KV-POOL-9, KV-ERR-2: references before one that was not popped are returned."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        try:
            super().free_blocks(block_ids)
        except KVSpecError:
            for block in block_ids:
                super().free_blocks([block])


class CachesOnlyWhatThereIs(ReferenceManager):
    """KV-MGR-11: a late registration of too many tokens is cut, not an error."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        super().cache_blocks(request, min(num_computed_tokens, request.num_tokens))


class StrangersAreErrors(ReferenceManager):
    """KV-ERR-4: releasing a request that holds nothing is an error."""

    def free(self, request: Request) -> None:
        if not self.coordinator.holds_blocks(self.own(request).request_id):
            raise InvalidArgumentError("request", request.request_id, "one that holds blocks")
        super().free(request)


class AskingStrangersIsAnError(ReferenceManager):
    """KV-ERR-4: asking for the common prefix of a request that holds nothing is an error."""

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        if not self.coordinator.holds_blocks(self.own(request).request_id):
            raise KeyError(request.request_id)
        return super().get_num_common_prefix_blocks(request)


class HitsOfTheWrongGroup(ReferenceManager):
    """KV-MGR-8: a hit may carry the key of any group."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        def any_group(block_hash: bytes, group: int) -> Any:
            return AnyGroup(block_hash)

        with mock.patch.object(arguments, "make_key", any_group):
            return super().allocate_slots(request, num_new_tokens, **how)


class AnyGroup(bytes):
    """Equal to every key with this hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes) and other[:-4] == bytes(self)

    def __hash__(self) -> int:
        return 0


MUTANTS = classes_in(__name__)
