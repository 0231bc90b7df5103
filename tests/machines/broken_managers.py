"""Managers with one bug each in what they say or do, for the checks of the state machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.stats import PrefixCacheStats


class CountsOneBlockMore(ReferenceManager):
    """One free block more than there is."""

    @property
    def num_free_blocks(self) -> int:
        return super().num_free_blocks + 1


class NeverInUse(ReferenceManager):
    """Usage is always 0."""

    @property
    def usage(self) -> float:
        return 0.0


class TakesABlockEachStep(ReferenceManager):
    """A block is set aside for a step, and never given back."""

    def new_step_starts(self) -> None:
        super().new_step_starts()
        self.pool.allocate(1)


class CountsLookUpsTwice(ReferenceManager):
    """Every look-up is two."""

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        stats = super().make_prefix_cache_stats()
        return None if stats is None else replace(stats, requests=2 * stats.requests)


class SaysItReset(ReferenceManager):
    """A reset succeeds whatever is in use."""

    def reset_prefix_cache(self) -> bool:
        super().reset_prefix_cache()
        return True


class KeepsKeysAtAReset(ReferenceManager):
    """A reset forgets nothing."""

    def reset_prefix_cache(self) -> bool:
        return self.num_free_blocks == self.config.kv_cache.num_blocks - 1


class RefusalEvicts(ReferenceManager):
    """A refusal drops the keys of free blocks, to make room next time."""

    def allocate_slots(self, request: Request, num_new_tokens: int, **more: Any) -> Any:
        answer = super().allocate_slots(request, num_new_tokens, **more)
        if answer is None:
            self.evict_blocks(self.pool.free_queue)
        return answer


class RefusesTheLastBlock(ReferenceManager):
    """An allocation that would leave no block free is refused."""

    def allocate_slots(self, request: Request, num_new_tokens: int, **more: Any) -> Any:
        reserved = more.pop("reserved_blocks", 0) + 1
        return super().allocate_slots(request, num_new_tokens, reserved_blocks=reserved, **more)


class AnswersInReverse(ReferenceManager):
    """An allocation answers its new blocks in the wrong order."""

    def allocate_slots(self, request: Request, num_new_tokens: int, **more: Any) -> Any:
        answer = super().allocate_slots(request, num_new_tokens, **more)
        if answer is None:
            return None
        return KVCacheBlocks(tuple(tuple(blocks)[::-1] for blocks in answer.to_lists()))


class FreesInListOrder(ReferenceManager):
    """The first block of a request is released first, and evicted first."""

    def free(self, request: Request) -> None:
        self.free_blocks(self.pop_blocks_for_free(request))


class PopsInReverse(ReferenceManager):
    """Popped blocks are answered as they are to be freed."""

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        return super().pop_blocks_for_free(request)[::-1]


class FreesOneByOne(ReferenceManager):
    """A deferred free is one release per block, which turns an unhashed run around."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            super().free_blocks([block])


class EvictsNothing(ReferenceManager):
    """Eviction by id does nothing."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        return


class EvictsUntilTheError(ReferenceManager):
    """What stands before a wrong block id is evicted."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            super().evict_blocks([block])


class NeverSkipsBelowZero(ReferenceManager):
    """A negative number of computed tokens counts as 0."""

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request, max(0, total_computed_tokens))


class FailsItsAudit(ReferenceManager):
    """An illegal call ends with a broken invariant."""

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        raise InvariantViolation("audited", "KV-POOL-15", "a block is lost")


class HitsOneBlockLess(ReferenceManager):
    """A look-up leaves out the last block it found."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        if not hit.hit_length_tokens:
            return hit
        blocks = KVCacheBlocks(tuple(tuple(blocks[:-1]) for blocks in hit.blocks.to_lists()))
        size = self.config.scheduler_block_size_tokens or 1
        return replace(hit, blocks=blocks, hit_length_tokens=hit.hit_length_tokens - size)


class SaysOneTokenLess(ReferenceManager):
    """The length of a hit is one token less than its blocks hold."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        return replace(hit, hit_length_tokens=max(0, hit.hit_length_tokens - 1))


class SilentlyCaching(ReferenceManager):
    """The first block that is stored is not told of."""

    def take_events(self) -> Any:
        return super().take_events()[1:]


class WithManager(ReferenceImplementation):
    """The reference with another manager; it does not audit itself."""

    def __init__(self, manager_class: type[ReferenceManager]) -> None:
        super().__init__()
        self.manager_class = manager_class

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        return self.manager_class(config, clock)


class ForgetsAHash(ReferenceImplementation):
    """The last full block of a prompt is not hashed."""

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        made: Any = super().make_request(manager, request)
        del made.block_hashes[-1:]
        return made  # type: ignore[no-any-return]  # its hashes are read-only for users


class HashesTheGrowthTwice(ReferenceImplementation):
    """Every growth adds a hash too many."""

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        super().append_tokens(manager, request, token_ids)
        grown: Any = request
        grown.block_hashes.append(grown.block_hashes[-1])
