"""Managers with one defect each, which a monitor must catch, and the engine that drives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.audit import unwrapped
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.events import Event
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec
from tests.machines.broken_pools import (
    GivesABlockTwice,
    KeepsKeysOfTakenBlocks,
    LeaksUnhashedBlocks,
)


def config(num_blocks: int = 10, *, hash_seed: str | None = "0") -> ManagerConfig:
    """One group of full attention, blocks of 4 tokens, events on."""
    groups = (KVCacheGroup(("layer",), FullAttentionSpec(4, 1, 8, "float16")),)
    return ManagerConfig(
        KVCacheConfig(num_blocks, groups),
        max_model_len_tokens=4 * num_blocks,
        enable_events=True,
        log_stats=True,
        hash_seed=hash_seed,
    )


class WithManager(ReferenceImplementation):
    """kvref with another class of manager, as good or bad as that is."""

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
        return self.manager_class(config, clock, self.parts)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        manager = unwrapped(super().restore(config, snapshot))
        manager.__class__ = self.manager_class  # the state is that of the class it was made as
        return manager


class KeepsAReferenceWhenItRefuses(ReferenceManager):
    """A refused allocation has taken the first free block already."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **options: object
    ) -> KVCacheBlocks | None:
        answer = super().allocate_slots(request, num_new_tokens, **options)  # type: ignore[arg-type]  # passed on as they came
        if answer is None and self.pool.free_queue:
            self.pool.allocate(1)
        return answer


class ForgetsKeysWhenItRefuses(ReferenceManager):
    """A refused allocation has evicted what it would have taken."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **options: object
    ) -> KVCacheBlocks | None:
        answer = super().allocate_slots(request, num_new_tokens, **options)  # type: ignore[arg-type]  # passed on as they came
        if answer is None:
            self.evict_blocks(self.pool.free_queue)
        return answer


class LosesEvents(ReferenceManager):
    """Of more than two events the last is lost."""

    def take_events(self) -> tuple[Event, ...]:
        return super().take_events()[:2]


class AnswersAnotherHit(ReferenceManager):
    """Where nothing is hit it answers a block that another content was cached in."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        cached = [block for block, keys in enumerate(self.pool.keys) if keys]
        if hit.hit_length_tokens or not cached or request.num_tokens < 5:
            return hit
        return PrefixHit(KVCacheBlocks(([cached[0]],)), 4)


class ChangesWhenItRaises(ReferenceManager):
    """Returning blocks that were not popped raises, after all others were returned."""

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        ids = list(block_ids)
        for block in ids:
            if block in self.popped:
                super().free_blocks([block])
        super().free_blocks(ids)


class ListsADifferentBlock(ReferenceManager):
    """Shows the last block of a list as its neighbour."""

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        (blocks,) = super().get_blocks(request).to_lists()
        return KVCacheBlocks(([*blocks[:-1], blocks[-1] % 9 + 1] if len(blocks) > 2 else blocks,))


@dataclass(frozen=True)
class Twin:
    """A defect: who has it, as which rules it is found, and at which rates of audits.

    `does_harm_at_once`: what departs from the rules and what is unsafe are one call.
    """

    name: str
    make: Callable[[], Implementation]
    rules: frozenset[str]
    rates: tuple[int, ...] = (1, 20, 10_000)
    does_harm_at_once: bool = True


def _pool(pool: type[BlockPool]) -> Callable[[], Implementation]:
    return partial(ReferenceImplementation, pool)


def _manager(manager: type[ReferenceManager]) -> Callable[[], Implementation]:
    return partial(WithManager, manager)


TWINS = (
    Twin("leaks blocks", _pool(LeaksUnhashedBlocks), frozenset({"KV-POOL-15"})),
    Twin("gives a block twice", _pool(GivesABlockTwice), frozenset({"KV-POOL-3", "KV-POOL-15"})),
    Twin(
        "answers stale hits",  # which events, or a look at the state, may show first
        _pool(KeepsKeysOfTakenBlocks),
        frozenset({"KV-HASH-1", "KV-EVT-7", "KV-POOL-17"}),
        does_harm_at_once=False,
    ),
    Twin("answers another hit", _manager(AnswersAnotherHit), frozenset({"KV-HASH-1"})),
    Twin(
        "takes a block when it refuses",
        _manager(KeepsAReferenceWhenItRefuses),
        frozenset({"KV-POOL-15", "KV-POOL-16"}),
    ),
    Twin(
        "evicts when it refuses",
        _manager(ForgetsKeysWhenItRefuses),
        frozenset({"KV-MGR-6"}),
        rates=(1,),
    ),
    Twin("loses events", _manager(LosesEvents), frozenset({"KV-EVT-7"}), rates=(1, 20)),
    Twin(
        "changes when it raises",
        _manager(ChangesWhenItRaises),
        frozenset({"KV-ERR-2", "KV-POOL-15"}),
    ),
    Twin(
        "lists another block", _manager(ListsADifferentBlock), frozenset({"KV-GRP-1", "KV-POOL-3"})
    ),
)


class Engine:
    """A small engine: requests of equal beginnings come, run, are preempted and end.

    Everything follows from `step`, so that two runs are equal.
    """

    def __init__(self, implementation: Implementation, manager: KVCacheManager) -> None:
        self.implementation = implementation
        self.manager = manager
        self.running: list[Request] = []
        self.number = 0

    def run(self, steps: int) -> None:
        """As many steps; each admits one request, and lets all that run compute a token."""
        for step in range(steps):
            self.manager.new_step_starts()
            for request in list(self.running):
                if request in self.running:
                    self.decode(request, step)
            self.admit(step)
            self.ask(step)
            self.manager.take_events()
            self.manager.make_prefix_cache_stats()

    def admit(self, step: int) -> None:
        """A new request; three of four begin alike."""
        family = 0 if step % 4 else step
        tokens = [family * 100 + n for n in range(4 + 5 * (step % 3))] + [step, step]
        request = self.implementation.make_request(
            self.manager,
            RequestInput(f"r{self.number}", tokens, cache_salt=None if step % 5 else "s"),
        )
        self.number += 1
        hit = self.manager.get_computed_blocks(request)
        granted = self.manager.allocate_slots(
            request,
            len(tokens) - hit.hit_length_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
        )
        if granted is not None:
            request.num_computed_tokens = len(tokens)
            request.status = RequestStatus.RUNNING
            self.running.append(request)

    def decode(self, request: Request, step: int) -> None:
        """One more token; who is refused ends, and who is long enough, too."""
        self.implementation.append_tokens(self.manager, request, [step])
        if request.num_tokens > 20 or self.manager.allocate_slots(request, 1) is None:
            self.end(request, step)
        else:
            request.num_computed_tokens += 1

    def end(self, request: Request, step: int) -> None:
        """Give the blocks back, at once or by way of popping."""
        self.running.remove(request)
        if step % 2:
            self.manager.free(request)
            return
        popped = self.manager.pop_blocks_for_free(request)[::-1]
        if popped:
            try:
                self.manager.free_blocks([*popped, popped[0]])
            except ValueError:
                self.manager.free_blocks(popped)

    def ask(self, step: int) -> None:
        """Now and then a question, an eviction, a reset that is refused."""
        if self.running:
            request = self.running[step % len(self.running)]
            self.manager.get_blocks(request)
            self.manager.get_num_common_prefix_blocks(request)
        if step % 7 == 3:
            last = self.manager.config.kv_cache.num_blocks - 1
            self.manager.evict_blocks([last - step % 3])
            self.manager.reset_prefix_cache()
        self.manager.take_new_block_ids()
