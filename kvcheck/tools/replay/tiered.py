"""A manager with a host tier behind it, for `kvcheck.tools.replay.driver`: one hit of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvcheck.tools.replay.result import Counts
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks, PrefixHit
from kvspec.errors import UnsupportedError
from kvspec.request import Request
from kvspec.tier import TieredImplementation


class TieredManager:
    """Makes the tier's calls between the manager's, in the order of spec/rules/tier.md.

    `local`: the manager's part of the last look-up. `known`: tokens of each running request whose
    blocks the tier knows. `counts` are the replay's. UnsupportedError without tiers.
    """

    def __init__(self, made_by: Any, manager: Any, num_blocks: int, counts: Counts) -> None:
        if not isinstance(made_by, TieredImplementation):
            raise UnsupportedError("a host tier", made_by.capabilities.name)
        self.manager, self.counts = manager, counts
        self.tier = made_by.make_tier(manager, num_blocks + 1)  # and the null block
        self.sizes = [group.spec.block_size for group in manager.config.kv_cache.groups]
        self.local = 0
        self.known: dict[str, tuple[Request, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        found: PrefixHit = self.manager.get_computed_blocks(request)
        self.local = found.hit_length_tokens
        both = self.local + self.tier.lookup(request, self.local)
        return replace(found, hit_length_tokens=both)

    def allocate_slots(
        self, request: Request, num_new: int, *, num_new_computed_tokens: int = 0, **options: Any
    ) -> KVCacheBlocks | None:
        is_new = request.request_id not in self.known
        local = self.local if is_new else 0
        external = num_new_computed_tokens - local
        if external:
            self.tier.hold(request, local, external)
        options |= {"num_new_computed_tokens": local, "num_external_computed_tokens": external}
        blocks: KVCacheBlocks | None = self.manager.allocate_slots(request, num_new, **options)
        if blocks is None:
            self.tier.drop(request)
            return None
        new: Sequence[Sequence[int]] = blocks.groups
        if is_new:
            self.known[request.request_id] = request, num_new_computed_tokens
            lists = self.manager.get_blocks(request)
            new = [ids[local // size :] for ids, size in zip(lists.groups, self.sizes, strict=True)]
        taken = [block for ids in new for block in ids if block != NULL_BLOCK]
        self.counts.blocks_copied += len(self.tier.taken(taken))
        if external:
            self.tier.load(request, lists)
            self.counts.tokens_loaded += external
        return blocks

    def new_step_starts(self) -> None:
        for request, _ in self.known.values():
            self._note(request)
        self.manager.new_step_starts()

    def free(self, request: Request) -> None:
        self._note(request)
        del self.known[request.request_id]
        self.manager.free(request)

    def _note(self, request: Request) -> None:
        """Let the tier know of the request's blocks that became full."""
        before, now = self.known[request.request_id][1], request.num_computed_tokens
        if all(before // size == now // size for size in self.sizes):
            return
        self.known[request.request_id] = request, now
        lists = self.manager.get_blocks(request).groups
        for group, (ids, size) in enumerate(zip(lists, self.sizes, strict=True)):
            first, end = before // size, now // size
            self.tier.computed(request, group, first, ids[first:end])
