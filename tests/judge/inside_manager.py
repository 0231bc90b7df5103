"""A small manager whose hits end inside a block, and what can be wrong with one (KV-INSIDE-*).

Full attention and Mamba in mode align, no drafts, no loads. Each boundary that a prompt's chunk
ends at is registered. A mistake is a subclass that differs in one method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from kvspec.base import BaseImplementation, BaseManager, BaseRequest
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.inside import BlockCopies, Chunk, hash_block_size
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.snapshot import MambaState, RequestState, Snapshot
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec

NO_HASH = hashlib.sha256().digest()


class InsideRequest(BaseRequest):
    """A request with a hash for every `size` tokens of its beginning."""

    def __init__(self, given: RequestInput, size: int) -> None:
        super().__init__(given)
        self.size = size
        self.known = [NO_HASH]

    @property
    def block_hashes(self) -> list[bytes]:  # type: ignore[override]  # worked out, not kept
        """Of the whole beginning each."""
        return [self.hash_of(end) for end in range(self.size, self.num_tokens + 1, self.size)]

    def hash_of(self, num_tokens: int) -> bytes:
        """The hash of the first tokens."""
        for end in range(len(self.known), num_tokens + 1):
            text = self.known[-1] + repr(self.token_ids[end - 1]).encode()
            self.known.append(hashlib.sha256(text).digest())
        return self.known[num_tokens]


class InsideManager(BaseManager):
    """Its blocks: references, keys with the tokens that they cover, what the step has touched."""

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self.h = hash_block_size(config)
        self.config = replace(config, hash_block_size_tokens=self.h)
        self.specs = config.managed_specs
        num_blocks = config.kv_cache.num_blocks
        self.free_queue = list(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.keys: list[dict[bytes, int]] = [{} for _ in range(num_blocks)]
        self.lists: dict[str, list[list[int]]] = {}
        self.pending: list[tuple[int, int]] = []
        self.owed: list[int] = []
        self.touched: set[int] = set()

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_queue)

    # Looking up.

    def get_computed_blocks(self, request: InsideRequest) -> PrefixHit:
        """The longest boundary that every group can end at."""
        for end in range((request.num_tokens - 1) // self.h * self.h, 0, -self.h):
            lists = [self._ends_at(request, group, end) for group in range(len(self.specs))]
            if all(found is not None for found in lists):
                return PrefixHit(KVCacheBlocks(tuple(found or [] for found in lists)), end)
        return PrefixHit(KVCacheBlocks.empty(len(self.specs)), 0)

    def _ends_at(self, request: InsideRequest, group: int, end: int) -> list[int] | None:
        size = self.specs[group].block_size
        if isinstance(self.specs[group], MambaSpec):
            block = self._find(request, group, end, is_read=True)
            return None if block is None else [NULL_BLOCK] * ((end - 1) // size) + [block]
        whole = range(size, end + 1, size)
        found = [self._find(request, group, each, is_read=False) for each in whole]
        if end % size:  # any block that holds these tokens, the fullest first
            ends = range(min(end // size * size + size, request.num_tokens), end - 1, -1)
            held = (self._find(request, group, each, is_read=True) for each in ends)
            found.append(next((block for block in held if block is not None), None))
        return None if None in found else [block for block in found if block is not None]

    def _find(self, request: InsideRequest, group: int, end: int, *, is_read: bool) -> int | None:
        """A block with that key. One that is copied, or is a state, must be of an earlier step."""
        key = self._key(request, group, end)
        carriers = (block for block, keys in enumerate(self.keys) if key in keys)
        return next((b for b in carriers if not (is_read and self.is_too_new(b))), None)

    def is_too_new(self, block: int) -> bool:
        """Whether this step writes the block."""
        return block in self.touched

    def _key(self, request: InsideRequest, group: int, end: int) -> bytes:
        return request.hash_of(end) + group.to_bytes(4, "big")

    # Allocating.

    def allocate_slots(
        self,
        request: InsideRequest,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        **lacking: Any,
    ) -> KVCacheBlocks | None:
        """Shared ends are copied, own ones with a key leave a copy behind."""
        start = request.num_computed_tokens + num_new_computed_tokens
        hits: list[list[int]] = [[] for _ in self.specs]
        if new_computed_blocks is not None:
            hits = [list(blocks) for blocks in new_computed_blocks.groups]
        lists = self.lists.get(request.request_id)
        chunk_end = start + num_new_tokens
        taken = {block for blocks in hits for block in blocks if not self.refs[block]}
        if len(self.specs) * 4 + chunk_end // self.h + len(taken) > len(self.free_queue):
            return None  # more than is ever needed
        for block in (block for blocks in hits for block in blocks if block != NULL_BLOCK):
            self._hold(block)
        is_new = lists is None
        lists = self.lists.setdefault(request.request_id, hits)
        for group, (spec, blocks) in enumerate(zip(self.specs, lists, strict=True)):
            chunk = Chunk(start, chunk_end, spec.block_size)
            if start % spec.block_size and blocks:
                self._part_from(blocks, start // spec.block_size, is_new=is_new)
            self._extend(spec, blocks, chunk)
            self._register(request, group, blocks, chunk)
        return KVCacheBlocks(tuple(map(tuple, lists)))

    def _part_from(self, blocks: list[int], index: int, *, is_new: bool) -> None:
        """The block that the step begins in is the request's own, and has no key, afterwards."""
        own = blocks[index]
        if is_new:
            fresh = self._take()
            blocks[index] = fresh
            self.copies(own, fresh)  # the reference of the hit becomes that of the copy
            self.refs[own] -= 1
            self._give_back_unheld(own)
        elif self.keys[own] and self.moves_keys():
            fresh = self._take()
            self.keys[fresh], self.keys[own] = self.keys[own], {}
            self.copies(own, fresh)
            self.refs[fresh] -= 1
            self._give_back_unheld(fresh)

    def moves_keys(self) -> bool:
        """Whether a request that goes on in a block with a key leaves a copy behind."""
        return True

    def copies(self, source: int, destination: int) -> None:
        """Ask for a copy; both ends are kept until the step is over."""
        self.pending.append((source, destination))
        for block in (source, destination):
            self._hold(block)
            self.owed.append(block)
        self.touched.add(destination)

    def _extend(self, spec: LayerSpec, blocks: list[int], chunk: Chunk) -> None:
        last = (chunk.end - 1) // chunk.size
        if not isinstance(spec, MambaSpec):
            while len(blocks) <= last:
                blocks.append(self._take())
        elif len(blocks) <= last:
            blocks.extend([NULL_BLOCK] * (last - len(blocks)))
            if chunk.checkpoint(spec, self.config):
                blocks[chunk.checkpoint_entry] = self._take()
            blocks.append(self._take())
        self.touched.update(blocks[chunk.start // chunk.size :])

    def _register(
        self, request: InsideRequest, group: int, blocks: list[int], chunk: Chunk
    ) -> None:
        """Keys of what is behind them when the step is over."""
        size, end, spec = chunk.size, min(chunk.end, request.num_tokens), self.specs[group]
        at = {number * size: number - 1 for number in range(1, end // size + 1)}
        if isinstance(spec, MambaSpec):
            at = {place: index for place, index in at.items() if self.has_seen(place, chunk)}
            checkpoint = chunk.checkpoint(spec, self.config)
            at |= {checkpoint: chunk.checkpoint_entry} if checkpoint else {}
            tail = end if end % self.h == 0 and end < request.num_prompt_tokens else 0
        else:
            tail = (request.num_prompt_tokens - 1) // self.h * self.h
        if tail % size and tail <= end:
            at[tail] = tail // size
        for place, index in at.items():
            if blocks[index] != NULL_BLOCK and not self._is_kept(request, group, place):
                block = blocks[index]
                self.keys[block] = {self._key(request, group, place): place}

    def has_seen(self, place: int, chunk: Chunk) -> bool:
        """Whether the step leaves the state after so many tokens in the block that ends there."""
        return place == chunk.end

    def _is_kept(self, request: InsideRequest, group: int, place: int) -> bool:
        return any(self._key(request, group, place) in keys for keys in self.keys)

    def _take(self) -> int:
        block = self.free_queue.pop(0)
        self.keys[block] = {}
        self.refs[block] = 1
        return block

    def _hold(self, block: int) -> None:
        if not self.refs[block]:
            self.free_queue.remove(block)
        self.refs[block] += 1

    def _give_back_unheld(self, block: int) -> None:
        if not self.refs[block]:
            self.free_queue.append(block)

    # Copies and steps.

    def take_block_copies(self) -> BlockCopies:
        """The copies since the last call."""
        pairs, self.pending = tuple(self.pending), []
        return BlockCopies(pairs, self.retained(pairs))

    def retained(self, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """The references to be returned: both ends of each copy."""
        return tuple(block for pair in pairs for block in pair)

    def new_step_starts(self) -> None:
        """What was written may be read."""
        self.touched.clear()

    # Releasing.

    def free(self, request: InsideRequest) -> None:
        """Release everything, last block first."""
        self._release(self._forget(request)[::-1])

    def pop_blocks_for_free(self, request: InsideRequest) -> tuple[int, ...]:
        """Forget the request, keep its references."""
        blocks = tuple(self._forget(request))
        self.owed.extend(block for block in blocks if block != NULL_BLOCK)
        return blocks

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return references that are owed."""
        for block in block_ids:
            if block != NULL_BLOCK:
                self.owed.remove(block)
        self._release(block_ids)

    def _forget(self, request: InsideRequest) -> list[int]:
        return [block for blocks in self.lists.pop(request.request_id, ()) for block in blocks]

    def _release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self.refs[block] -= 1
                self._give_back_unheld(block)

    # Showing.

    def get_blocks(self, request: InsideRequest) -> KVCacheBlocks:
        """The lists."""
        lists = self.lists.get(request.request_id, [[] for _ in self.specs])
        return KVCacheBlocks(tuple(map(tuple, lists)))

    def snapshot(self) -> Snapshot:
        """Everything that is kept."""
        order: dict[bytes, tuple[int, ...]] = {}
        for block, keys in enumerate(self.keys):
            for key in keys:
                order[key] = (*order.get(key, ()), block)
        mamba = tuple(MambaState(True) if isinstance(s, MambaSpec) else None for s in self.specs)
        no_counts = (None,) * len(self.specs)
        return Snapshot(
            num_blocks=len(self.refs),
            free_queue=tuple(self.free_queue),
            ref_counts=tuple(self.refs),
            block_keys=tuple(tuple(keys) for keys in self.keys),
            lookup_order=order,
            covered_tokens=tuple(max(keys.values(), default=0) for keys in self.keys),
            none_hash=NO_HASH,
            requests={
                name: RequestState(tuple(map(tuple, lists)), no_counts, mamba)
                for name, lists in self.lists.items()
            },
            popped_blocks=tuple(sorted(self.owed)),
            new_block_ids=((),) * len(self.specs),
            step_keys=(frozenset[bytes](),) * len(self.specs),
        )


class InsideImplementation(BaseImplementation):
    """The manager, or one with a mistake."""

    name = "inside"
    spec_types: ClassVar[frozenset[type[LayerSpec]]] = frozenset(
        {FullAttentionSpec, MLAAttentionSpec, MambaSpec}
    )
    limits: ClassVar[Mapping[str, int]] = MappingProxyType({"num_speculative_blocks": 0})
    features: ClassVar[frozenset[Feature]] = frozenset(
        {
            *(Feature.PREFIX_CACHING, Feature.MULTIPLE_GROUPS, Feature.RETENTION),
            *(Feature.DEFERRED_FREE, Feature.SNAPSHOT, Feature.STABLE_LISTS),
            *(Feature.LATER_CHOICES, Feature.HITS_INSIDE_BLOCKS),
        }
    )

    def __init__(self, manager_class: type[InsideManager] = InsideManager) -> None:
        self.made_of = manager_class

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        """Nothing is audited here."""
        super().create(config)
        made: Any = self.made_of(config)
        return made  # type: ignore[no-any-return]  # a manager by its methods

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """A request with hashes of this manager."""
        super().make_request(manager, request)
        return InsideRequest(request, manager.config.hash_block_size_tokens or 1)


class KeysWhatItStartsFrom(InsideManager):
    """A step that passes the end of the block that it begins in keys that block for all of it."""

    def has_seen(self, place: int, chunk: Chunk) -> bool:
        return place == chunk.end or (place - chunk.size < chunk.start < place <= chunk.end)


class SharesTheEnd(InsideManager):
    """A request goes on in the block that its hit ends in."""

    def _part_from(self, blocks: list[int], index: int, *, is_new: bool) -> None:
        if not is_new:
            super()._part_from(blocks, index, is_new=is_new)


class GoesOnUnderItsKey(InsideManager):
    """A request under way leaves no copy of its own block behind."""

    def moves_keys(self) -> bool:
        return False


class KeepsOneEnd(InsideManager):
    """The sources of copies are not said to be kept."""

    def retained(self, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        return tuple(destination for _, destination in pairs)


class CopiesCopies(InsideManager):
    """A block that this step writes is a source."""

    def is_too_new(self, block: int) -> bool:
        return False


class HitsOneMore(InsideManager):
    """A hit that is no multiple of h."""

    def get_computed_blocks(self, request: InsideRequest) -> PrefixHit:
        found = super().get_computed_blocks(request)
        return replace(found, hit_length_tokens=max(0, found.hit_length_tokens - 1))
