"""Mutants of what all groups do: needs, hits taken, blocks appended, cached, removed (KV-GRP-*).

Derived from `Group` itself, so each is mixed into every type of group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

from kvref.groups.base import ZEROED_SPECS, Demand, Group, cdiv
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK
from tests.mutants.make import classes_in

# mypy: disable-error-code="safe-super"
# What is abstract in `Group` is defined by the type that a mutant is mixed into.


class RevivedHitsAreFree(Group):
    """KV-GRP-4: hits in the free queue are not counted in the need."""

    def num_revived(self, hits: Sequence[int]) -> int:
        return 0


class EveryHitCosts(Group):
    """KV-GRP-4: hits that somebody holds are counted in the need, too."""

    def num_revived(self, hits: Sequence[int]) -> int:
        return len(hits)


class NullHitsCost(Group):
    """KV-GRP-4: nulls of a hit are counted in the need."""

    def num_revived(self, hits: Sequence[int]) -> int:
        return super().num_revived(hits) + list(hits).count(NULL_BLOCK)


class SkippedHitsCost(Group):
    """KV-GRP-4: free hits that will be skipped are counted in the need."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        need = super().num_blocks_needed(request_id, hits, demand)
        if self.has_entry(request_id):
            return need
        skipped = self.num_skipped_tokens(demand.skip_at_tokens) // self.block_size
        return need + self.num_revived(hits[:skipped])


class HeldBlocksAreForgotten(Group):
    """KV-GRP-3: a running request needs all its blocks again."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        held = len(self.blocks_of(request_id)) if self.has_entry(request_id) else 0
        return super().num_blocks_needed(request_id, hits, demand) + held


class SkippedTokensNeedBlocks(Group):
    """KV-GRP-4: the need of a new request ignores what its window skips."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        if not self.has_entry(request_id):
            demand = replace(demand, skip_at_tokens=0)
        return super().num_blocks_needed(request_id, hits, demand)


class NeedIsRoundedDown(Group):
    """KV-GRP-3, KV-GRP-4: the last, incomplete block is not counted."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        whole = demand.num_slots_tokens // self.block_size * self.block_size
        return super().num_blocks_needed(request_id, hits, replace(demand, num_slots_tokens=whole))


class AlwaysCapped(Group):
    """KV-GRP-3, KV-SW-7, KV-CHUNK-5: the cap for admission bounds every need."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        demand = replace(demand, apply_admission_cap=True)
        return super().num_blocks_needed(request_id, hits, demand)


class NeverCapped(Group):
    """KV-MGR-5, KV-SW-7, KV-CHUNK-5: admission counts a windowed group with the whole sequence."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        demand = replace(demand, apply_admission_cap=False)
        return super().num_blocks_needed(request_id, hits, demand)


class HitsAreNotTouched(Group):
    """KV-GRP-5, KV-POOL-5: hits are listed, but nobody counts the reference."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        counts, queue = list(self.pool.ref_counts), list(self.pool.free_queue)
        super().take_hits(request_id, hits, demand)
        self.pool.ref_counts, self.pool.free_queue = counts, queue


class SkippedHitsAreTouched(Group):
    """KV-GRP-5: hits that become null keep a reference for good."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        skipped = self.num_skipped_tokens(demand.skip_at_tokens) // self.block_size
        super().take_hits(request_id, hits, demand)
        self.pool.touch(hits[:skipped])


class SkippedHitsAreKept(Group):
    """KV-GRP-5: hits before the window stay in the list."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        super().take_hits(request_id, hits, replace(demand, skip_at_tokens=0))


class CountLeavesOutNulls(Group):
    """KV-GRP-5: the cached count after hits does not include skipped blocks."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        super().take_hits(request_id, hits, demand)
        if request_id in self.num_cached:
            self.num_cached[request_id] -= self.block_lists[request_id].count(NULL_BLOCK)


class HitsAreCachedAgain(Group):
    """KV-GRP-5, KV-POOL-18: the cached count starts at 0 although the hits carry keys."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        super().take_hits(request_id, hits, demand)
        if request_id in self.num_cached:
            self.num_cached[request_id] = 0


class ExternalTokensAlwaysGetBlocks(Group):
    """KV-GRP-6: external tokens get blocks although no window reaches them."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        if self.covers_sequence:
            self.extend(request_id, cdiv(demand.num_computed_tokens, self.block_size))


class ExternalTokensGetNoBlocks(Group):
    """KV-GRP-6: external tokens get their blocks with the new ones, one group after the other."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        pass


class ExternalTokensGetFullBlocksOnly(Group):
    """KV-GRP-6: the incomplete block of external tokens comes with the new ones."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        external = demand.num_computed_tokens % self.block_size
        demand = replace(demand, num_external_tokens=max(demand.num_external_tokens - external, 0))
        super().allocate_external(request_id, demand)


class ShortListsGetTheLoadAlone(Group):
    """KV-GRP-6: a group with a short list gets blocks for the load behind the longest alone."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        held, local = (
            len(self.blocks_of(request_id)),
            cdiv(demand.num_local_tokens, self.block_size),
        )
        if held < local < cdiv(demand.num_computed_tokens, self.block_size):
            behind = cdiv(demand.num_computed_tokens, self.block_size) - local
            self.extend(request_id, held + behind)
        else:
            super().allocate_external(request_id, demand)


class CountsTheLongestHit(Group):
    """KV-GRP-5: the cached count of a group with a short list begins with the longest hit."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        super().take_hits(request_id, hits, demand)
        longest = demand.num_local_tokens // self.block_size
        self.num_cached[request_id] = max(self.num_cached[request_id], longest)


class OneBlockTooMany(Group):
    """KV-GRP-7: a block is taken for the token after a block that is exactly full."""

    def extend(self, request_id: str, num_blocks: int) -> list[int]:
        held = len(self.blocks_of(request_id))
        more = 1 if num_blocks > held and self.pool.num_free_blocks > num_blocks - held else 0
        return super().extend(request_id, num_blocks + more)


class NewBlocksInFront(Group):
    """KV-GRP-1, KV-GRP-7: new blocks are put before those held."""

    def extend(self, request_id: str, num_blocks: int) -> list[int]:
        taken = super().extend(request_id, num_blocks)
        if taken:
            blocks = self.block_lists[request_id]
            blocks[:] = blocks[-len(taken) :] + blocks[: -len(taken)]
        return taken


class ZeroesAnyType(Group):
    """KV-GRP-10: blocks of every type are queued for zeroing."""

    def extend(self, request_id: str, num_blocks: int) -> list[int]:
        taken = super().extend(request_id, num_blocks)
        if type(self.spec) not in ZEROED_SPECS:
            self.new_block_ids.extend(taken)
        return taken


class ZeroesNothing(Group):
    """KV-GRP-10: no block is queued for zeroing."""

    def extend(self, request_id: str, num_blocks: int) -> list[int]:
        taken = super().extend(request_id, num_blocks)
        self.new_block_ids = []
        return taken


class ZeroesPlainAttentionOnly(Group):
    """KV-GRP-10: blocks of latent layers are not queued for zeroing."""

    def extend(self, request_id: str, num_blocks: int) -> list[int]:
        queued = list(self.new_block_ids)
        taken = super().extend(request_id, num_blocks)
        if type(self.spec) is not ZEROED_SPECS[0]:
            self.new_block_ids = queued
        return taken


class ZeroesHits(Group):
    """KV-GRP-10: blocks of a hit are zeroed, too."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        super().take_hits(request_id, hits, demand)
        if type(self.spec) in ZEROED_SPECS:
            self.new_block_ids.extend(block for block in hits if block != NULL_BLOCK)


class ZeroesAgain(Group):
    """KV-MGR-16: the queue of blocks to be zeroed is never emptied."""

    def take_new_block_ids(self) -> list[int]:
        return list(self.new_block_ids)


class CachesTheIncompleteBlock(Group):
    """KV-GRP-11: a block is cached one token before it is full."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        hash_size = self.block_size // self.hashes_per_block
        super().cache_blocks(
            request, min(num_tokens + 1, len(request.block_hashes) * hash_size, self.slots(request))
        )

    def slots(self, request: ReferenceRequest) -> int:
        """Tokens that its list has room for."""
        return len(self.blocks_of(request.request_id)) * self.block_size


class CachesOneBlockLate(Group):
    """KV-GRP-11: a block is cached when the next one has a token."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        super().cache_blocks(request, max(num_tokens - 1, 0))


class EntryWithoutAFullBlock(Group):
    """KV-GRP-1, KV-GRP-11: any caching call creates a cached count."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        super().cache_blocks(request, num_tokens)
        self.num_cached.setdefault(request.request_id, 0)


class CountGoesBack(Group):
    """KV-GRP-11: a caching call for fewer tokens lowers the cached count."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        super().cache_blocks(request, num_tokens)
        name = request.request_id
        if name in self.num_cached:
            self.num_cached[name] = min(self.num_cached[name], num_tokens // self.block_size)


class LastHashOfTheFirst(Group):
    """KV-HASH-5: a block of several hashes is cached under the first of them."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        whole, step = request.block_hashes, self.hashes_per_block
        request.block_hashes = [whole[i // step * step] for i in range(len(whole))]
        super().cache_blocks(request, num_tokens)
        request.block_hashes = whole


class HalfSkippedBlocksGo(Group):
    """KV-GRP-2: a block that lies partly before s(c) is removed."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        skipped = cdiv(self.num_skipped_tokens(num_computed_tokens), self.block_size)
        blocks = self.block_lists.get(request_id, [])
        if 0 < skipped < len(blocks) and blocks[skipped - 1] != NULL_BLOCK:
            self.pool.release([blocks[skipped - 1]])
            blocks[skipped - 1] = NULL_BLOCK


class NothingIsRemoved(Group):
    """KV-GRP-2, KV-MGR-14: what fell out of the window is kept until the end."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        pass


class RemovedFirstToLast(Group):
    """KV-GRP-2: skipped blocks are released in the order of the list."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        released: list[int] = []
        with mock.patch.object(self.pool, "release", released.extend):
            super().remove_skipped_blocks(request_id, num_computed_tokens)
        self.pool.release(released[::-1])


class OneReleaseCallPerBlock(Group):
    """KV-GRP-2, KV-POOL-7: each skipped block is released in a call of its own."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        released: list[int] = []
        with mock.patch.object(self.pool, "release", released.extend):
            super().remove_skipped_blocks(request_id, num_computed_tokens)
        for block in released:
            self.pool.release([block])


class CountOutlivesTheRequest(Group):
    """KV-GRP-9, KV-MGR-12: a freed request still counts as running."""

    def pop(self, request_id: str) -> list[int]:
        count = self.num_cached.get(request_id)
        blocks = super().pop(request_id)
        if count is not None:
            self.num_cached[request_id] = count
        return blocks


MUTANTS = classes_in(__name__)
