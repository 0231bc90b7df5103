"""Operations on blocks between steps: forks, swaps, loads, partial copies, eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

import torch

from kvfast.device import (
    Backend,
    DeviceTables,
    HostTier,
    KVPools,
    PageOperations,
    Swapper,
    Transfer,
)
from kvfast.device.tier.swap import resized
from kvspec.interface import Implementation
from kvspec.request import Request, RequestStatus
from kvspec.sequential import batched_of
from kvspec.tier import TieredImplementation
from tests.device.contents import Case, Contents, fingerprints
from tests.device.models import DEVICE, LateStreams, filled

LONGEST = 30
NUM_SWAP_BLOCKS = 40

Lists: TypeAlias = tuple[Sequence[int], ...]


@dataclass(eq=False)
class One:
    """A request; `swapped`: host block of each (group, entry), while it is out."""

    handle: int
    request: Request
    salt: str | None
    drafts: list[int] = field(default_factory=list)
    swapped: dict[tuple[int, int], int] = field(default_factory=dict)
    num_swapped_tokens: int = 0


class Moves:
    """A manager, its pools and all that moves blocks; the moves between steps."""

    def __init__(
        self, case: Case, implementation: Implementation, random: Random, backend: Backend
    ) -> None:
        self.case, self.implementation, self.random = case, implementation, random
        groups = len(case.specs)
        config = case.config(1 + groups * random.choice([8, 10, 12, 16]), LONGEST)
        self.manager = implementation.create(config, check_invariants=False)
        self.batched = batched_of(implementation, self.manager)
        self.pools = filled(config.kv_cache, random.randrange(1000), case.layout)
        self.pages = PageOperations(self.pools, backend=backend)
        size = case.world_size
        rank = random.randrange(size) if size > 1 else 0
        self.contents = Contents(self.pools, self.pages, rank=rank, world_size=size)
        self.tables = DeviceTables(
            config, max_requests=2, max_tokens=300, device=DEVICE, backend=backend
        )
        is_cuda = self.pools.device.type == "cuda"
        host_pools = KVPools(
            resized(config.kv_cache, NUM_SWAP_BLOCKS), layout=case.layout, pin_memory=is_cuda
        )
        # In host memory copies are made as late as a device might make them.
        late = None if is_cuda else LateStreams()
        self.swapper = Swapper(self.pools, host_pools, backend=backend, streams=late)
        self.host: HostTier | None = None
        if case.can_have_tier and isinstance(implementation, TieredImplementation):
            self.host = HostTier(
                implementation,
                self.batched,
                self.pools,
                num_host_blocks=random.choice([4, 20, 60]),
                num_spare_blocks=random.choice([0, 1, 3, 16]),
                backend=backend,
                streams=None if is_cuda else LateStreams(),
            )
        self.alive: list[One] = []
        self.gone: list[One] = []
        self.popped: list[tuple[int, ...]] = []
        self.transfers: list[Transfer] = []
        self.free_host_blocks = list(range(1, NUM_SWAP_BLOCKS))
        self.rows = torch.zeros((1000, 4), dtype=torch.int32)
        self.num_requests = 0
        self.counts: Counter[str] = Counter()

    @property
    def running(self) -> list[One]:
        return [one for one in self.alive if one.request.num_computed_tokens]

    @property
    def waiting(self) -> list[One]:
        return [one for one in self.alive if one not in self.running]

    def prints_of(self, one: One) -> list[int]:
        return fingerprints(one.salt, [*one.request.token_ids, *one.drafts])

    def add(self, salt: str | None, tokens: Sequence[int]) -> One:
        raise NotImplementedError

    def move(self) -> None:
        for one in self.waiting:
            if one.swapped:
                self.swap_in(one)
                continue
            if self.case.hash_block_size and self.random.random() < 0.9:
                self.take_over(one)
            if self.host is not None and one in self.waiting and self.random.random() < 0.7:
                self.load(one, self.host)
        for one in self.running:
            if self.random.random() < 0.12 and len(self.alive) < 8:
                self.fork(one)
            if self.case.hash_block_size:
                self.name_part(one)
            if self.random.random() < 0.1:
                self.manager.remove_skipped_blocks(one.request, one.request.num_computed_tokens)
        if self.popped and self.random.random() < 0.5:
            self.manager.free_blocks(self.popped.pop(0)[::-1])
        if self.random.random() < 0.1:
            some = self.random.sample(range(1, self.pools.num_blocks), 2)
            self.manager.evict_blocks(some)
        if self.random.random() < 0.02:
            self.counts["resets"] += self.manager.reset_prefix_cache()

    # External tokens.

    def bring(
        self, one: One, total: int, fill: Callable[[Lists, int], bool], *, delayed: bool = False
    ) -> bool:
        """Admit a request with `total` tokens, of which `fill` fills those that are no hit.

        `fill` gets the block lists and the hit, and returns whether it could; it may fail only with
        `delayed`, for then nothing has been registered.
        """
        hit = self.manager.get_computed_blocks(one.request)
        local = hit.hit_length_tokens
        if total <= local:
            return False
        allocated = self.manager.allocate_slots(
            one.request,
            0,
            num_new_computed_tokens=local,
            new_computed_blocks=hit.blocks,
            num_external_computed_tokens=total - local,
            delay_cache_blocks=delayed,
        )
        if allocated is None:
            return False
        lists = self.manager.get_blocks(one.request).groups
        if self.host is not None:
            self.host.take(self.fresh(lists, local))
        self.pages.zero_blocks(self.manager.take_new_block_ids())
        if not fill(lists, local):
            self.manager.free(one.request)
            return False
        if delayed:
            self.manager.cache_blocks(one.request, total)
        one.request.num_computed_tokens = total
        one.request.status = RequestStatus.RUNNING
        self.tables.set_lengths([one.handle], total)
        self.counts["hit tokens"] += local
        return True

    def places(self, lists: Lists, first: int, end: int) -> list[tuple[int, int, int]]:
        """Return group, entry and block of tokens `first` … `end` - 1."""
        return [
            (group, index, block)
            for group, ids in enumerate(lists)
            for index, block in enumerate(ids)
            if block and first <= index * self.case.span(group) < end
        ]

    def fresh(self, lists: Lists, local: int) -> list[int]:
        return [block for _, _, block in self.places(lists, local, 2 * LONGEST)]

    def fork(self, parent: One) -> None:
        """Fork a request: full blocks are shared, the rest is copied (KV-DEV-5)."""
        total = parent.request.num_computed_tokens
        tokens = [*list(parent.request.token_ids)[:total], self.random.choice([0, 1, 2])]
        if total == LONGEST:
            return  # no token fits behind it
        child = self.add(parent.salt, tokens)

        def fill(lists: Lists, local: int) -> bool:
            theirs = self.manager.get_blocks(parent.request).groups
            places = self.places(lists, local, total)
            for group in range(len(lists)):
                mine = [(index, block) for g, index, block in places if g == group]
                self.pages.copy_blocks(
                    [theirs[group][index] for index, _ in mine],
                    [block for _, block in mine],
                    group=self.random.choice([None, group]),
                )
            self.counts["blocks copied"] += len(places)
            return True

        self.counts["forks"] += self.bring(child, total, fill, delayed=self.random.random() < 0.5)

    def name_part(self, one: One) -> None:
        """Make the beginning of a block known (KV-PART-1)."""
        hashed, most = self.case.hash_block_size or 1, one.request.num_computed_tokens
        sizes = [spec.block_size for spec in self.case.specs]
        num = min(most, one.request.num_tokens) // hashed * hashed
        if num and all(num % size for size in sizes):
            for group in range(len(sizes)):
                named = self.manager.cache_partial_block(one.request, group, num)
                self.counts["parts named"] += named

    def take_over(self, one: One) -> None:
        """Begin with a copy of the first slots of a block that is known in part (KV-DEV-5)."""
        hashed = self.case.hash_block_size or 1
        total = self.manager.get_computed_blocks(one.request).hit_length_tokens + hashed
        if total >= one.request.num_tokens:
            return
        order, found = self.manager.snapshot().lookup_order, list[int]()
        for group in range(len(self.case.specs)):
            key = one.request.block_hashes[total // hashed - 1] + group.to_bytes(4, "big")
            found += order.get(key, ())[:1]
        if len(found) < len(self.case.specs):
            return

        def fill(lists: Lists, local: int) -> bool:
            if not set(found).isdisjoint(self.fresh(lists, local)):
                return False  # it was taken for this very request
            for group, spec in enumerate(self.case.specs):
                size = spec.block_size
                first, new = found[group] * size, lists[group][total // size] * size
                slots = range(total % size)
                self.pages.copy_slots(
                    group, [first + slot for slot in slots], [new + slot for slot in slots]
                )
            return True

        self.counts["parts taken over"] += self.bring(one, total, fill, delayed=True)

    # To host memory and back.

    def swap_out(self, one: One) -> None:
        total = one.request.num_computed_tokens
        places = self.places(self.manager.get_blocks(one.request).groups, 0, total)
        if len(places) > len(self.free_host_blocks):
            return
        host_blocks = [self.free_host_blocks.pop() for _ in places]
        pairs = zip(places, host_blocks, strict=True)
        one.swapped = {(group, index): host for (group, index, _), host in pairs}
        one.num_swapped_tokens = total
        self.transfers.append(self.swapper.swap_out([place[2] for place in places], host_blocks))
        self.counts["blocks swapped out"] += len(places)

    def swap_in(self, one: One) -> None:
        if self.random.random() < 0.2:
            self.release_swapped(one)
            return

        def fill(lists: Lists, local: int) -> bool:
            places = self.places(lists, local, total)
            host_blocks = [one.swapped[group, index] for group, index, _ in places]
            self.swapper.swap_in(host_blocks, [block for _, _, block in places]).wait()
            self.counts["blocks swapped in"] += len(places)
            return True

        total = one.num_swapped_tokens
        if self.bring(one, total, fill):
            self.counts["swapped in"] += 1
            self.release_swapped(one)
        elif self.manager.get_computed_blocks(one.request).hit_length_tokens >= total:
            self.release_swapped(one)  # all of it is still here

    def release_swapped(self, one: One) -> None:
        self.free_host_blocks += one.swapped.values()
        one.swapped = {}

    def load(self, one: One, host: HostTier) -> None:
        before = host.tier.snapshot().device.items()
        num_tokens = host.load(one.request)
        if num_tokens:
            after = host.tier.snapshot()
            gone = {key for block, key in before if after.device.get(block) != key}
            assert after.free == () or gone <= {key for key, _ in after.host}, "saved before loads"
            self.tables.set_lengths([one.handle], num_tokens)
            self.counts["loads"] += 1

    def pop(self, one: One) -> None:
        """Pop the request's blocks, to be released later (KV-MGR-13)."""
        self.popped.append(self.manager.pop_blocks_for_free(one.request))
        self.counts["popped"] += 1
