"""The host tier exactly as the rules define it (KV-TIER-*): lists, searched from end to end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.checks.tier import block_list, check_blocks, check_request, plain
from kvspec.config import ManagerConfig
from kvspec.domains import int_at_least, is_int
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.request import Request
from kvspec.tier import Copies, Key, TierSnapshot
from kvspec.turn import Turn, in_turn


class ReferenceTier:
    """`device`: block → key. `host`: [key, host block], oldest first. `held`: id → keys."""

    def __init__(self, config: ManagerConfig, num_blocks: int, turn: Turn) -> None:
        num_blocks = plain(num_blocks)
        int_at_least("num_blocks", num_blocks, 1, error=InvalidArgumentError)
        for spec in config.managed_specs:
            if (
                not (spec.reads_whole_prefix or spec.window_tokens)
                or spec.extra_retained_tokens > 0
                or spec.replays_window
            ):
                raise UnsupportedError(f"a host tier for {spec.kind} groups", "kvref")
        if config.dcp_world_size * config.pcp_world_size > 1:
            raise UnsupportedError("a host tier under context parallelism", "kvref")
        if not config.enable_caching:
            raise UnsupportedError("a host tier without prefix caching", "kvref")
        self.turn = turn
        self.config = config
        self.num_blocks = num_blocks
        self.reset_all()

    def reset_all(self) -> None:
        self.device: dict[int, Key] = {}
        self.host: list[tuple[Key, int]] = []
        self.free = list(range(1, self.num_blocks))
        self.held: dict[str, list[tuple[Key, int, int]]] = {}

    @in_turn
    def lookup(self, request: Request, num_local_tokens: int) -> int:
        """Return the largest number of external tokens that the tier can load (KV-TIER-4)."""
        num_local_tokens = self._checked_local(request, num_local_tokens)
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
        num_local_tokens = self._checked_local(request, num_local_tokens)
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
        for key, _, _ in reversed(needed):
            self._use(key)
        self.held[request.request_id] = needed

    @in_turn
    def drop(self, request: Request) -> None:
        """End the request's hold (KV-TIER-6)."""
        check_request(request)
        self.held.pop(request.request_id, None)

    @in_turn
    def taken(self, blocks: Sequence[int]) -> Copies:
        """Copy the content of taken blocks to the host, one block after another (KV-TIER-2)."""
        blocks = block_list(blocks, self.config.kv_cache.num_blocks)
        copies: list[tuple[int, int]] = []
        for block in blocks:
            key = self.device.pop(block, None)
            if key is None:
                continue
            if self._on_host(key):
                self._use(key)
                continue
            place = self._place()
            if place is not None:
                self.host.append((key, place))
                copies = [copy for copy in copies if copy[1] != place] + [(block, place)]
        return tuple(copies)

    @in_turn
    def load(self, request: Request, blocks: KVCacheBlocks) -> Copies:
        """Return the copies from the host to the blocks in these lists (KV-TIER-6)."""
        check_request(request)
        check_blocks(blocks)
        needed = self.held.get(request.request_id)
        if needed is None:
            raise InvalidArgumentError("request", request.request_id, "one that holds something")
        copies = []
        for key, group, index in needed:
            ids = blocks.groups[group] if group < len(blocks.groups) else ()
            found = list(islice(ids, index, index + 1))  # a range may be longer than any list
            if not found or found[0] == NULL_BLOCK:
                raise InvalidArgumentError(
                    "blocks", f"groups[{group}]", f"a list with a block at {index}"
                )
            (block,) = block_list(found, self.config.kv_cache.num_blocks)
            copies.append((self._host_block(key), block))
        for (key, _, _), (_, block) in zip(needed, copies, strict=True):
            self.device[block] = key
        del self.held[request.request_id]
        return tuple(copies)

    @in_turn
    def computed(self, request: Request, group: int, first: int, blocks: Sequence[int]) -> None:
        """Note that the content of these blocks is known (KV-TIER-1)."""
        check_request(request)
        group, first = plain(group), plain(first)
        if not is_int(group) or not 0 <= group < len(self.config.kv_cache.groups):
            raise InvalidArgumentError("group", group, "the number of a group")
        int_at_least("first", first, 0, error=InvalidArgumentError)
        blocks = block_list(blocks, self.config.kv_cache.num_blocks)
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
        if any(key in self._held_keys() for key in keys):
            raise InvalidArgumentError("blocks", list(blocks), "blocks whose copies are not held")
        for block in blocks:
            self.device.pop(block, None)
        again = [block for key, block in self.host if key in keys]
        self.host = [(key, block) for key, block in self.host if key not in keys]
        self.free = sorted(self.free + again)

    @in_turn
    def reset(self) -> None:
        """Drop everything (KV-TIER-7)."""
        if self.held:
            raise InvalidArgumentError("held", list(self.held), "empty: load or drop them first")
        self.reset_all()

    @in_turn
    def snapshot(self) -> TierSnapshot:
        held = {name: tuple(key for key, _, _ in keys) for name, keys in self.held.items()}
        return TierSnapshot(dict(self.device), tuple(self.host), tuple(self.free), held)

    # Parts of the rules.

    @property
    def _alignment(self) -> int:
        return self.config.scheduler_block_size_tokens or 1

    def _needed(
        self, request: Request, num_local_tokens: int, total: int
    ) -> list[tuple[Key, int, int]] | None:
        """Return (key, group, index) of all needed entries; None if one has no hash."""
        needed = []
        for number, spec in enumerate(self.config.managed_specs):
            size = spec.block_size
            skipped = 0
            if spec.window_tokens:
                skipped = max(0, total - spec.window_tokens + 1)
            for index in range(total // size):
                if index < num_local_tokens // size or index < skipped // size:
                    continue
                key = self._key(request, number, index)
                if key is None:
                    return None
                needed.append((key, number, index))
        return needed

    def _key(self, request: Request, group: int, index: int) -> Key | None:
        """Return the key of an entry (KV-HASH-5, KV-HASH-6); None if it has no hash yet."""
        size = self.config.managed_specs[group].block_size
        per_block = size // (self.config.hash_block_size_tokens or 1)
        number = (index + 1) * per_block - 1
        hashes = request.block_hashes
        return (group, bytes(hashes[number])) if number < len(hashes) else None

    def _on_host(self, key: Key) -> bool:
        return any(key == other for other, _ in self.host)

    def _host_block(self, key: Key) -> int:
        return next(block for other, block in self.host if key == other)

    def _use(self, key: Key) -> None:
        """Make it the youngest (KV-TIER-3)."""
        entry = (key, self._host_block(key))
        self.host.remove(entry)
        self.host.append(entry)

    def _held_keys(self) -> list[Key]:
        return [key for keys in self.held.values() for key, _, _ in keys]

    def _place(self) -> int | None:
        """Return a host block: free, or that of the oldest key not held (KV-TIER-2)."""
        if self.free:
            return self.free.pop(0)
        held = self._held_keys()
        for entry in self.host:
            if entry[0] not in held:
                self.host.remove(entry)
                return entry[1]
        return None

    def _checked_local(self, request: Request, num_local_tokens: int) -> int:
        check_request(request)
        num_local_tokens = plain(num_local_tokens)
        legal = is_int(num_local_tokens) and 0 <= num_local_tokens <= request.num_tokens
        if not legal or num_local_tokens % self._alignment:
            raise InvalidArgumentError(
                "num_local_tokens", num_local_tokens, f"a multiple of {self._alignment} in the text"
            )
        return num_local_tokens
