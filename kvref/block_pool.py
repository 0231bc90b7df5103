"""The pool: reference counts, eviction order and cached identity of every block (KV-POOL-*)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvref.events import EventLog
from kvref.residency import ResidencyLog
from kvspec.blocks import NULL_BLOCK
from kvspec.errors import ConfigError, InvariantViolation


class BlockPool:
    """All blocks of one cache.

    - `free_queue`: free blocks, the front is taken first (KV-POOL-2).
    - `ref_counts[b]`: how many block lists and popped references hold block b.
    - `keys[b]`: the keys block b is cached under, the primary one first.
    - `primary_num_tokens[b]`: tokens from the start of the request that the primary key covers.
    - `reserved`: blocks set aside for good, for attention sinks (KV-FULL-8).
    - `ranks[b]`: of cached blocks, the rank in the order of eviction (KV-ORD-1).
    - `written_from[b]`: of blocks that this step writes, the tokens there before (KV-INSIDE-17).
    - `cached[key]`: the blocks that carry the key, first registered first (KV-POOL-13).

    Invariants: null_block_is_apart, free_queue_has_no_duplicates, free_means_unreferenced,
    keys_and_lookups_agree, keys_are_listed_once, keys_are_covered, blocks_set_aside_are_alone,
    blocks_that_stay_keep_their_keys, lookups_keep_their_order, ranks_are_in_order,
    ranks_are_bounded.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        events: EventLog,
        residency: ResidencyLog | None = None,
        unhashed_freed_to: str = "front",
        removed_event_per: str = "copy",
        order: tuple[str, int] = ("lru", 0),
    ) -> None:
        self.num_blocks = num_blocks
        self.events = events
        self.residency = residency
        self.unhashed_freed_to = unhashed_freed_to
        self.removed_event_per = removed_event_per
        self.order, self.order_number = order
        self.free_queue = list(range(1, num_blocks))  # KV-POOL-1: without the null block
        self.ref_counts = [0] * num_blocks
        self.keys: list[list[bytes]] = [[] for _ in range(num_blocks)]
        self.primary_num_tokens = [0] * num_blocks
        self.cached: dict[bytes, list[int]] = {}
        self.reserved: list[int] = []
        self.ranks = [0] * num_blocks
        self.written_from: dict[int, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self.free_queue)

    @property
    def usage(self) -> float:
        """The share of blocks in use, the null block left out (KV-POOL-12)."""
        if self.num_blocks == 1:
            return 0.0
        return 1.0 - self.num_free_blocks / (self.num_blocks - 1)

    def is_free(self, block: int) -> bool:
        """Return whether the block is in the free queue."""
        return block != NULL_BLOCK and self.ref_counts[block] == 0

    def find(self, key: bytes) -> int | None:
        """Return the block that a look-up of `key` finds: the first registered (KV-POOL-13)."""
        return self.cached[key][0] if key in self.cached else None

    def allocate(self, n: int) -> list[int]:
        """Take n blocks from the front of the free queue (KV-POOL-3).

        The caller has checked that there are n, and refuses otherwise.
        """
        taken = self.free_queue[:n]
        del self.free_queue[:n]
        for block in taken:
            self.forget(block)  # KV-POOL-4
            self.ref_counts[block] = 1
            self.written_from.pop(block, None)
            if self.residency is not None:
                self.residency.allocated(block)
        return taken

    def set_aside(self, n: int) -> None:
        """Take n blocks for good, before the first request (KV-FULL-8)."""
        if n > self.num_free_blocks:
            raise ConfigError("sink_len", n, f"at most the {self.num_free_blocks} blocks there are")
        self.reserved.extend(self.allocate(n))

    def touch(self, blocks: Sequence[int]) -> None:
        """Take a reference on each hit block; free ones leave the free queue (KV-POOL-5)."""
        hits = [block for block in blocks if block != NULL_BLOCK]
        revived = {block for block in hits if self.is_free(block)}
        if revived:
            self.free_queue = [block for block in self.free_queue if block not in revived]
        for block in hits:
            self.ref_counts[block] += 1
            if self.residency is not None:
                self.residency.touched(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference on each block, in list order, in one release (KV-POOL-6, KV-POOL-7).

        Example, queue [1]: releasing 7 (hashed), 8, 9 (not) gives [8, 9, 1, 7].
        """
        freed: list[int] = []
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                freed.append(block)
        if self.unhashed_freed_to == "front":
            self.free_queue[:0] = [block for block in freed if not self.keys[block]]
        for block in freed:
            if self.keys[block]:
                self.free_queue.insert(self.place_for(block), block)
                self.bound_pins()
            elif self.unhashed_freed_to == "back":  # a policy of older engines
                self.free_queue.append(block)

    # The order of eviction.

    def place_for(self, block: int) -> int:
        """Return the place of the first free block that is evicted later (KV-ORD-1)."""
        for place, other in enumerate(self.free_queue if self.order != "lru" else ()):
            if self.keys[other] and self.level(other) > self.level(block):
                return place
        return len(self.free_queue)

    def level(self, block: int) -> int:
        """Return what counts for the place of a cached block: its rank, or whether it is pinned."""
        if self.order == "pin":
            return int(self.ranks[block] == self.order_number)
        return self.ranks[block]

    def bound_pins(self) -> None:
        """Take the pin of the first block that waits pinned, if too many do (KV-ORD-4)."""
        queue = self.free_queue if self.order == "pin" else []
        pinned = [block for block in queue if self.keys[block] and self.level(block)]
        if len(pinned) > (self.num_blocks - 1) // 2:
            self.ranks[pinned[0]] -= 1

    def new_step_starts(self) -> None:
        """Let cached blocks in the queue age, and drop the keys of those too old (KV-ORD-5)."""
        for block in self.free_queue if self.order == "ttl" else ():
            if self.keys[block] and self.ranks[block] == 0:
                self.drop_keys(block)
            self.ranks[block] -= 1

    def begin(self, block: int, priority: int) -> None:
        """Rank a block that is about to be cached by a request of this priority."""
        if not self.keys[block]:
            first = {"priority": priority, "lfu": 1, "pin": 1, "ttl": self.order_number}
            self.ranks[block] = first.get(self.order, 0)

    def use(self, hits: Sequence[int], priority: int) -> None:
        """Rank hits anew that a request of this priority uses (KV-ORD-2 … KV-ORD-5)."""
        for block in hits:
            if self.order == "priority":
                self.ranks[block] = max(self.ranks[block], priority)
            if self.order == "lfu":
                self.ranks[block] += 1
            if self.order == "pin":
                self.ranks[block] = min(self.ranks[block] + 1, self.order_number)
            if self.order == "ttl":
                self.ranks[block] = self.order_number

    # Cached identity.

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        """Cache a full block under its key, beside blocks with the same key (KV-POOL-14).

        The key covers `num_tokens` tokens from the start. Keys that the block still has belong to a
        shorter partial entry; they are removed first (KV-POOL-18).
        """
        if self.keys[block] and self.primary_num_tokens[block] >= num_tokens:
            raise InvariantViolation(
                "blocks_are_registered_once",
                "KV-POOL-18",
                f"block {block} already carries a key for {self.primary_num_tokens[block]} tokens",
            )
        self.drop_keys(block)
        self.keys[block].append(key)
        self.primary_num_tokens[block] = num_tokens
        self.cached.setdefault(key, []).append(block)

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        """Cache a block under a key that ends inside it (KV-PART-2); False if it had it already.

        The first key is the primary one; a longer prefix replaces all keys (KV-PART-3).
        """
        if key in self.keys[block]:
            return False
        if self.keys[block] and self.primary_num_tokens[block] < num_tokens:
            self.drop_keys(block)
        if not self.keys[block]:
            self.primary_num_tokens[block] = num_tokens
        self.keys[block].append(key)
        self.cached.setdefault(key, []).append(block)
        return True

    def move_keys(self, source: int, destination: int) -> None:
        """Move all keys of a block to one without keys, without an event (KV-INSIDE-16)."""
        for key in self.keys[source]:
            self.cached[key].remove(source)
            self.cached[key].append(destination)
        self.keys[destination] = self.keys[source]
        self.primary_num_tokens[destination] = self.primary_num_tokens[source]
        self.ranks[destination] = self.ranks[source]
        self.keys[source] = []

    def forget(self, block: int) -> None:
        """Drop the block's cached identity, wherever the block is (KV-POOL-4, KV-POOL-10)."""
        if self.residency is not None:
            self.residency.ended(block)
        self.drop_keys(block)

    def drop_keys(self, block: int) -> None:
        """Take every key of the block out of the cache, with a removal event each (KV-EVT-4)."""
        for key in self.keys[block]:
            copies = self.cached[key]
            copies.remove(block)
            if not copies:
                del self.cached[key]
            if self.removed_event_per == "copy" or not copies:
                self.events.removed(key)
        self.keys[block] = []

    def reset(self) -> bool:
        """Drop every key, if no block is in use (KV-POOL-11)."""
        if self.num_free_blocks != self.num_blocks - 1 - len(self.reserved):
            return False
        self.keys = [[] for _ in range(self.num_blocks)]
        self.cached = {}
        if self.residency is not None:
            self.residency.reset()
        self.events.cleared()  # KV-EVT-5
        return True
