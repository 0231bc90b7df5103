"""Mutants of what no part has for itself: copies, policies, counts, the pool as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvref.planning import memory
from kvspec import _check
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.interface import Capabilities, KVCacheManager
from kvspec.planning import PlanningConfig
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.specs import CrossAttentionSpec, EncoderOnlyAttentionSpec
from tests.mutants.make import classes_in, planning


class ClonesNothing(ReferenceImplementation):
    """KV-MGR-20: a clone is the manager itself."""

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """No copy."""
        return manager


class RestoresInOrder(ReferenceImplementation):
    """KV-MGR-20: a manager is restored with its free blocks in the order of their ids."""

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """The queue is sorted."""
        queue = tuple(sorted(snapshot.free_queue))
        return super().restore(config, replace(snapshot, free_queue=queue))


class NamesTooFewFunctions(ReferenceImplementation):
    """KV-POL-8: it has hash functions that it does not name."""

    @property
    def capabilities(self) -> Capabilities:
        """With one function."""
        return replace(super().capabilities, hash_functions=frozenset({"sha256_cbor"}))


class CountsWithoutEnd(ReferenceManager):
    """KV-ERR-6: a count may be as large as one likes."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        """With a limit that nobody reaches."""
        with mock.patch.object(_check, "COUNT_MAX", 10**100):
            return super().allocate_slots(request, num_new_tokens, **how)


class HitsOfEncoders(ReferenceManager):
    """KV-CROSS-3: a request of encoder tokens hits the first block of the request before."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """One null per group stands for a hit."""
        hit = super().get_computed_blocks(request)
        specs = [group.spec for group in self.config.kv_cache.groups]
        if not any(isinstance(s, CrossAttentionSpec | EncoderOnlyAttentionSpec) for s in specs):
            return hit
        size = self.config.kv_cache.groups[0].spec.block_size
        length = min(size, request.num_tokens - 1)
        return replace(hit, hit_length_tokens=length)


class PoolBesideTheNullBlock(BlockPool):
    """KV-CFG-2: the pool has num_blocks blocks and the null block besides."""

    def __init__(self, num_blocks: int, **parts: Any) -> None:
        super().__init__(num_blocks + 1, **parts)


class SwapsTheNextTwo(BlockPool):
    """KV-POL-7: exact ids are declared, and two blocks are handed out in the other order."""

    def allocate(self, n: int) -> list[int]:
        """Of each two or more the first two are swapped in the queue before."""
        if n > 1:
            self.free_queue[:2] = self.free_queue[1::-1]
        return super().allocate(n)


class KeepsOneBack(BlockPool):
    """KV-POL-9, KV-POOL-15: while blocks are in use, one that is free is not counted."""

    @property
    def num_free_blocks(self) -> int:
        """One fewer, but for an idle pool."""
        free = len(self.free_queue)
        return max(0, free - (free < self.num_blocks - 1 - len(self.reserved)))


def counts_no_null_block(groups: Any, config: PlanningConfig) -> int:
    """KV-POL-5: planning forgets the null block and what is set aside, whatever the policy."""
    policy = replace(config.policy, capacity_counts_null_block=False)
    return _groups_bytes(groups, replace(config, policy=policy))


_groups_bytes = memory.groups_bytes

MUTANTS = (*classes_in(__name__), planning(counts_no_null_block, (memory, "groups_bytes")))
