"""kvref with one right side undone: at that point each twin does what vLLM 0.24.0 does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvref.allocation import Allocator
from kvref.configuration import Parts
from kvref.groups.base import Demand, Group
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.hybrid import AttentionGroup, HybridCoordinator
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvref.request import Allocation, ReferenceRequest
from kvspec.audit import AuditedManager, audited
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from tests.mutants.errors import ShortListsNeedNoLoad


class WithManager(ReferenceImplementation):
    """kvref with another manager class."""

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
        """The twin, audited as kvref is."""
        return audited(self.manager_class(config, clock, self.parts))


class LooksFurther(AttentionGroup):
    """An eagle group of Mamba looks one block further, too, but has nothing to drop."""

    is_mamba = False


class MambaLooksFurther(HybridCoordinator):
    """Every attention group is asked alike."""

    def __init__(self, groups: Sequence[Group], alignment_tokens: int) -> None:
        super().__init__(groups, alignment_tokens)
        self.attention_groups = [LooksFurther(group.members) for group in self.attention_groups]


class CutsTheFirst(HybridCoordinator):
    """Only the first full-attention list is cut to the length of the hit."""

    def longest_hit(self, request: ReferenceRequest, max_length_tokens: int) -> PrefixHit:
        """Put the uncut lists of the other ones back."""
        hit = super().longest_hit(request, max_length_tokens)
        lists = list(hit.blocks.groups)
        for attention in self.attention_groups[1:]:
            if attention.is_full:
                uncut = attention.look_up(
                    request.block_hashes, max_length_tokens, drop=False, alignment=self.alignment
                )
                for group, blocks in zip(attention.members, uncut, strict=True):
                    lists[group.index] = tuple(blocks)
        return replace(hit, blocks=KVCacheBlocks(tuple(lists)))


class StopsAtNull(AlignedMambaGroup):
    """The removal takes the first null for the end."""

    has_null_gaps = False


class ForgetsExternal(AlignedMambaGroup):
    """The need counts one running state and the drafted ones, whatever comes from elsewhere."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """As without external tokens."""
        demand = replace(demand, num_external_tokens=0)
        return super().num_blocks_needed(request_id, hits, demand)


class LastItemOnly(ReferenceImplementation):
    """Blocks that appended tokens complete see the last multimodal item only."""

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """Hide the other items while the new blocks are hashed."""
        inner = manager.inner if isinstance(manager, AuditedManager) else manager
        assert isinstance(inner, ReferenceManager)
        own = inner.own(request)
        whole = own.input
        own.input = replace(whole, multimodal=whole.multimodal[-1:])
        super().append_tokens(manager, request, token_ids)
        own.input = whole


class SkipsAtTheEnd(Allocator):
    """After a load of the whole prompt the window is taken at its end."""

    def demand(self, asked: Allocation) -> Demand:
        demand = super().demand(asked)
        return replace(demand, skip_at_tokens=demand.num_computed_tokens)


class WithAllocator(ReferenceImplementation):
    """kvref with another allocator."""

    def __init__(self, allocator: type[Allocator]) -> None:
        super().__init__()
        self.parts = Parts(allocator=allocator)


class CountsDrafts(ReferenceManager):
    """Whatever a step computed counts as computed in the next, drafts included."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.planned: dict[str, int] = {}

    def allocate_slots(self, request: Request, num_new_tokens: int, **arguments: Any) -> Any:
        """Put the planned number in place of the verified one."""
        name = request.request_id
        request.num_computed_tokens = max(request.num_computed_tokens, self.planned.get(name, 0))
        self.planned[name] = request.num_computed_tokens + num_new_tokens
        return super().allocate_slots(request, num_new_tokens, **arguments)


class KeepsThePrefix(ReferenceManager):
    """A look-up that is skipped shows the uncached common prefix of the one before."""

    uncached: int | None = None

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Remember, or repeat."""
        hit = super().get_computed_blocks(request)
        if self.own(request).input.skip_reading_cache:
            return replace(hit, uncached_common_prefix_tokens=self.uncached)
        self.uncached = hit.uncached_common_prefix_tokens
        return hit


class AcceptsAnyChunk(ReferenceImplementation):
    """A chunk may be no multiple of the block size, whatever the policy."""

    def create(self, config: ManagerConfig, **arguments: Any) -> KVCacheManager:
        """Under the policy that accepts it."""
        policy = replace(config.policy, chunk_must_align=False)
        return super().create(replace(config, policy=policy), **arguments)


class AllocatesLessThanNothing(ReferenceManager):
    """External blocks are what is needed less what is held, even below 0."""

    surplus = 0

    @property
    def num_free_blocks(self) -> int:
        """What the counter says after blocks were taken less than none."""
        return super().num_free_blocks + self.surplus

    def allocate_slots(self, request: Request, num_new_tokens: int, **arguments: Any) -> Any:
        """Take external blocks for a request that holds some already."""
        name = request.request_id
        external = arguments.get("num_external_computed_tokens", 0)
        group = self.groups[0]
        held = len(group.blocks_of(name))
        if not external or not held or group.has_entry(name):
            return super().allocate_slots(request, num_new_tokens, **arguments)
        needed = -(-(request.num_computed_tokens + external) // group.block_size)
        self.surplus += held - needed
        group.num_cached[name] = held
        return KVCacheBlocks(((),))


class TrustsTheCaller(ReferenceManager):
    """Ids are used as they come."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Release them, whoever holds the reference."""
        for block in block_ids:
            if block in self.popped:
                self.popped.remove(block)
        self.pool.release(block_ids)

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """-1 is the last block, as in every Python list."""
        for block in block_ids:
            self.pool.forget(block)


class Asserts(ReferenceManager):
    """Hits for a request under way fail an assertion."""

    def allocate_slots(self, request: Request, num_new_tokens: int, **arguments: Any) -> Any:
        """An AssertionError is no error that a caller could name."""
        try:
            return super().allocate_slots(request, num_new_tokens, **arguments)
        except InvalidArgumentError:
            holds_blocks = self.coordinator.holds_blocks(self.own(request).request_id)
            if holds_blocks and arguments.get("num_new_computed_tokens"):
                raise AssertionError from None
            raise


def twins() -> dict[str, tuple[ReferenceImplementation, int | None]]:
    """For each vector the twin that must fail it, and in which record (None: in the header)."""
    aligned = AlignedMambaGroup
    return {
        "eagle_mamba": (ReferenceImplementation(hybrid_class=MambaLooksFurther), 5),
        "two_full_specs": (ReferenceImplementation(hybrid_class=CutsTheFirst), 6),
        "align_null_gap": (ReferenceImplementation(group_classes=[(aligned, StopsAtNull)]), 4),
        "align_external": (ReferenceImplementation(group_classes=[(aligned, ForgetsExternal)]), 1),
        "late_items": (LastItemOnly(), 1),
        "whole_prompt_external": (WithAllocator(SkipsAtTheEnd), 1),
        "verified_tokens": (WithManager(CountsDrafts), 4),
        "skipped_read": (WithManager(KeepsThePrefix), 8),
        "chunk_inside_block": (AcceptsAnyChunk(), None),
        "external_behind_lookahead": (WithManager(AllocatesLessThanNothing), 2),
        "released_twice": (WithManager(TrustsTheCaller), 8),
        "illegal_arguments": (WithManager(Asserts), 3),
        "short_lists": (WithManager(ShortListsNeedNoLoad), 17),
    }
