"""Mutants of keys that end inside a block (KV-PART-*)."""

from __future__ import annotations

from typing import Any

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Group
from kvref.request import ReferenceRequest
from tests.mutants.make import classes_in


class PartialKeyOfTheNextHash(Group):
    """KV-PART-1: the key is that of the hash behind the boundary."""

    def cache_partial_block(self, request: ReferenceRequest, num_tokens: int) -> bool:
        size = self.block_size // self.hashes_per_block
        longer = num_tokens + size
        if longer // size > len(request.block_hashes) or longer % self.block_size == 0:
            longer = num_tokens
        return super().cache_partial_block(request, longer)


class PartialKeyOfTheBlock(Group):
    """KV-PART-1: the key is that of the block's first hash, wherever the boundary is."""

    def cache_partial_block(self, request: ReferenceRequest, num_tokens: int) -> bool:
        size = self.block_size // self.hashes_per_block
        first = num_tokens // self.block_size * self.block_size + size
        return super().cache_partial_block(request, first)


class PartialAnswersNewOnes(Group):
    """KV-PART-1: False is answered for a key that the block had."""

    def cache_partial_block(self, request: ReferenceRequest, num_tokens: int) -> bool:
        before = sum(map(len, self.pool.keys))
        return (
            super().cache_partial_block(request, num_tokens)
            and sum(map(len, self.pool.keys)) != before
        )


class PartialOnNull(Group):
    """KV-PART-1: a null block is said to carry the key."""

    def cache_partial_block(self, request: ReferenceRequest, num_tokens: int) -> bool:
        super().cache_partial_block(request, num_tokens)
        return True


class PartialBecomesPrimary(BlockPool):
    """KV-PART-2: the new key goes before those that the block has."""

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        done = super().register_partial(block, key, num_tokens)
        if done:
            self.keys[block].insert(0, self.keys[block].pop())
        return done


class ShorterKeysStay(BlockPool):
    """KV-PART-3: a longer prefix leaves the keys of shorter ones."""

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        covered, self.primary_num_tokens[block] = self.primary_num_tokens[block], num_tokens
        done = super().register_partial(block, key, num_tokens)
        if len(self.keys[block]) > 1:
            self.primary_num_tokens[block] = covered
        return done


class AllOtherKeysGo(BlockPool):
    """KV-PART-2, KV-PART-3: a new partial key always replaces all others."""

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        if key not in self.keys[block]:
            self.drop_keys(block)
        return super().register_partial(block, key, num_tokens)


class PromotionKeepsPartialKeys(BlockPool):
    """KV-PART-5, KV-POOL-18: a block that becomes full keeps its partial keys."""

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        kept, self.keys[block] = self.keys[block], []
        super().register(block, key, num_tokens)
        self.keys[block].extend(kept)


class PromotionIsSilent(BlockPool):
    """KV-PART-5, KV-EVT-4: keys that give way to a full block's key are not told."""

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        enabled, self.events.enabled = self.events.enabled, False
        super().register(block, key, num_tokens)
        self.events.enabled = enabled


class ChangesPartialEvent(EventLog):
    """Not broken by itself: lets a mutant change the event of a partial entry."""

    def stored(self, request: Any, **how: Any) -> None:
        hash_size = request.hash_block_size_tokens
        is_partial = how["block_size_tokens"] == hash_size != how["spec"].block_size
        if is_partial:
            how = self.changed(request, how)
        if how:
            super().stored(request, **how)

    def changed(self, request: Any, how: dict[str, Any]) -> dict[str, Any]:
        """What is told; nothing: no event."""
        return how


class PartialIsNotTold(ChangesPartialEvent):
    """KV-PART-4: a partial entry queues no event."""

    def changed(self, request: Any, how: dict[str, Any]) -> dict[str, Any]:
        return {}


class PartialHasNoParent(ChangesPartialEvent):
    """KV-PART-4: the event of a partial entry names no parent."""

    def changed(self, request: Any, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "parent_hash": None}


class PartialTellsTheWholePrefix(ChangesPartialEvent):
    """KV-PART-4: the event carries all tokens from the start of the block."""

    def changed(self, request: Any, how: dict[str, Any]) -> dict[str, Any]:
        per_block = how["spec"].block_size // how["block_size_tokens"]
        return {**how, "first_block": how["first_block"] // per_block * per_block}


class PartialIsToldAgain(BlockPool):
    """KV-PART-4: an event goes out although the block had the key."""

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        super().register_partial(block, key, num_tokens)
        return True


MUTANTS = classes_in(__name__)
