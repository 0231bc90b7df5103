"""The host tier exactly as KV-TIER-1 … 8 define it: an offload manager, called between two steps.

Host block n is place n - 1 of the manager's chunks, each of them one block. To the manager the
tier is one request, which loads what is held and stores what is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kvref.hashing import make_key
from kvref.offload import ReferenceOffload
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.checks.tier import (
    block_list,
    check_blocks,
    check_request,
    host_chunks,
    listed_entries,
    local_tokens,
    plain,
)
from kvspec.config import ManagerConfig
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError
from kvspec.offload import Found
from kvspec.request import Request
from kvspec.tier import Copies, Key, TierSnapshot
from kvspec.turn import Turn, in_turn

TIER = "the tier"
"""The id of the request that the tier is to its manager of chunks."""


class ReferenceTier:
    """`device`: block → key. `host`: its chunks. `held`: id → needed entries, and their places."""

    def __init__(self, config: ManagerConfig, num_blocks: int, turn: Turn) -> None:
        self.chunks = host_chunks(config, num_blocks, "kvref")
        self.turn = turn
        self.config = config
        self.reset_all()

    def reset_all(self) -> None:
        self.device: dict[int, bytes] = {}
        self.held: dict[str, tuple[list[tuple[bytes, int, int]], tuple[int, ...]]] = {}
        self.host = ReferenceOffload(self.chunks)
        self.host.new_request(TIER)

    @in_turn
    def lookup(self, request: Request, num_local_tokens: int) -> int:
        """Return the largest number of external tokens that the tier can load (KV-TIER-4)."""
        num_local_tokens = local_tokens(request, num_local_tokens, self.config)
        alignment = self._alignment
        last = max(1, self.config.hash_lookahead_tokens)  # KV-HASH-15
        total = max(request.num_tokens - last, 0) // alignment * alignment
        while total > num_local_tokens:
            needed = self._needed(request, num_local_tokens, total)
            if needed is not None and all(self._on_host(key) for key, _, _ in needed):
                return total - num_local_tokens
            total -= alignment
        return 0

    @in_turn
    def hold(self, request: Request, num_local_tokens: int, num_external_tokens: int) -> None:
        """Use and remember them (KV-TIER-3, KV-TIER-5)."""
        num_local_tokens = local_tokens(request, num_local_tokens, self.config)
        if request.request_id in self.held:
            raise InvalidArgumentError("request", request.request_id, "one that holds nothing")
        needed = None
        num_external_tokens = plain(num_external_tokens)
        if is_int(num_external_tokens) and num_external_tokens > 0:
            total = num_local_tokens + num_external_tokens
            if total % self._alignment == 0 and total < request.num_tokens:
                needed = self._needed(request, num_local_tokens, total)
        if needed is None or not all(self._on_host(key) for key, _, _ in needed):
            raise InvalidArgumentError(
                "num_external_tokens", num_external_tokens, "what lookup returned"
            )
        places = self.host.prepare_load([key for key, _, _ in needed], TIER)
        self.held[request.request_id] = needed, places

    @in_turn
    def drop(self, request: Request) -> None:
        """End the request's hold (KV-TIER-6)."""
        check_request(request)
        self._release(request)

    @in_turn
    def taken(self, blocks: Sequence[int]) -> Copies:
        """Copy the content of taken blocks to the host, one block after another (KV-TIER-2)."""
        blocks = block_list(blocks, self.config.kv_cache.num_blocks)
        copies: list[tuple[int, int]] = []
        for block in blocks:
            key = self.device.pop(block, None)
            if key is None:
                continue
            stored = self.host.prepare_store([key], TIER)
            for place in stored.places if stored is not None else ():
                self.host.complete_store([key], TIER)
                copies = [copy for copy in copies if copy[1] != place + 1] + [(block, place + 1)]
        self.host.take_events()
        return tuple(copies)

    @in_turn
    def load(self, request: Request, blocks: KVCacheBlocks) -> Copies:
        """Return the copies from the host to the blocks in these lists (KV-TIER-6)."""
        check_request(request)
        check_blocks(blocks)
        if request.request_id not in self.held:
            raise InvalidArgumentError("request", request.request_id, "one that holds something")
        needed, places = self.held[request.request_id]
        copies = []
        for (_, group, index), place in zip(needed, places, strict=True):
            ids = blocks.groups[group] if group < len(blocks.groups) else ()
            found = list(islice(ids, index, index + 1))  # a range may be longer than any list
            if not found or found[0] == NULL_BLOCK:
                raise InvalidArgumentError(
                    "blocks", f"groups[{group}]", f"a list with a block at {index}"
                )
            (block,) = block_list(found, self.config.kv_cache.num_blocks)
            copies.append((place + 1, block))
        for (key, _, _), (_, block) in zip(needed, copies, strict=True):
            self.device[block] = key
        self._release(request)
        return tuple(copies)

    @in_turn
    def computed(self, request: Request, group: int, first: int, blocks: Sequence[int]) -> None:
        """Note that the content of these blocks is known (KV-TIER-1)."""
        check_request(request)
        group, first, blocks = listed_entries(group, first, blocks, self.config)
        if blocks and self._key(request, group, first + len(blocks) - 1) is None:
            raise InvalidArgumentError("blocks", len(blocks), "entries of which there are hashes")
        for index, block in enumerate(blocks, start=first):
            key = self._key(request, group, index)
            if block != NULL_BLOCK and key is not None:
                self.device[block] = key

    @in_turn
    def forget(self, blocks: Sequence[int]) -> None:
        """Drop the content of these blocks, on the device and on the host (KV-TIER-7)."""
        blocks = block_list(blocks, self.config.kv_cache.num_blocks)
        keys = [self.device[block] for block in blocks if block in self.device]
        try:
            self.host.forget(keys)
        except InvalidArgumentError:
            allowed = "blocks whose copies are not held"
            raise InvalidArgumentError("blocks", list(blocks), allowed) from None
        for block in blocks:
            self.device.pop(block, None)

    @in_turn
    def reset(self) -> None:
        """Drop everything (KV-TIER-7)."""
        if self.held:
            raise InvalidArgumentError("held", list(self.held), "empty: load or drop them first")
        self.reset_all()

    @in_turn
    def snapshot(self) -> TierSnapshot:
        device = {block: _key_of(key) for block, key in self.device.items()}
        held = {
            name: tuple(_key_of(key) for key, _, _ in needed)
            for name, (needed, _) in self.held.items()
        }
        host = tuple((_key_of(each.key), each.place + 1) for each in self.host.chunks)
        free = tuple(place + 1 for place in self.host.free_places())
        return TierSnapshot(device, host, free, held)

    # Parts of the rules.

    @property
    def _alignment(self) -> int:
        return self.config.scheduler_block_size_tokens or 1

    def _needed(
        self, request: Request, num_local_tokens: int, total: int
    ) -> list[tuple[bytes, int, int]] | None:
        """Return (key, group, index) of all needed entries; None if one has no hash."""
        needed = []
        for number, spec in enumerate(self.config.managed_specs):
            size = spec.block_size
            skipped = 0
            if spec.window_tokens:
                skipped = max(0, total - spec.window_tokens + 1)
            elif spec.is_state:
                skipped = max(0, total - 1)
            for index in range(total // size):
                if index < num_local_tokens // size or index < skipped // size:
                    continue
                key = self._key(request, number, index)
                if key is None:
                    return None
                needed.append((key, number, index))
        return needed

    def _key(self, request: Request, group: int, index: int) -> bytes | None:
        """Return the key of an entry (KV-HASH-5, KV-HASH-6); None if it has no hash yet."""
        size = self.config.managed_specs[group].block_size
        per_block = size // (self.config.hash_block_size_tokens or 1)
        number = (index + 1) * per_block - 1
        hashes = request.block_hashes
        return make_key(bytes(hashes[number]), group) if number < len(hashes) else None

    def _on_host(self, key: bytes) -> bool:
        found = self.host.lookup(key, TIER)
        self.host.end_step()
        return found == Found.HIT

    def _release(self, request: Request) -> None:
        """End the request's hold, if it has one."""
        needed, _ = self.held.pop(request.request_id, ([], ()))
        self.host.complete_load([key for key, _, _ in needed], TIER)


def _key_of(key: bytes) -> Key:
    return int.from_bytes(key[-4:], "big"), key[:-4]
