"""The state of a pool as flat columns, and back (`kvspec.columns`): no object per block."""

from __future__ import annotations

from collections.abc import Mapping

from kvspec.columns import Columns, rings_of
from kvspec.errors import InvalidArgumentError
from kvspec.snapshot import Snapshot

from . import objects, record
from .arrays import zeroed
from .key_map import KeyMap
from .pool import BlockPool
from .tables import Tables


class PoolColumns:
    """Shows a pool as columns, and fills a fresh one. `hash_block_size`: tokens of a hash."""

    def __init__(self, pool: BlockPool, tables: Tables, hash_block_size: int) -> None:
        self.pool = pool
        self.keys: KeyMap = pool.keys
        self.tables = tables
        self.hash_block_size = hash_block_size

    # Showing.

    def shown(self, rest: Snapshot) -> Columns:
        """Return the columns, given the part of the snapshot outside them."""
        pool, keys = self.pool, self.keys
        n, width = pool.num_blocks, keys.width
        made = zeroed("i", n), zeroed("q", n)
        refs, covered = made
        count = 0
        for block in range(n):
            refs[block] = pool.refs(block)
            entry = block if keys.is_added(block) else 0
            if entry:
                covered[block] = pool.covered(block) * self.hash_block_size
            while entry:
                count += 1
                entry = pool.more(entry)
        shown = zeroed("i", count), zeroed("i", count), zeroed("Q", count * width)
        blocks, groups, words = shown
        numbers = zeroed("i", keys.num_entries)
        k = 0
        for block in range(n):
            entry = block if keys.is_added(block) else 0
            while entry:
                blocks[k] = block
                groups[k] = keys.group_of(entry)
                objects.copy_words(words, k * width, keys.words, record.WORDS * entry, width)
                numbers[entry] = k
                k += 1
                entry = pool.more(entry)
        return Columns(
            rest=rest,
            free_queue=self.queue(),
            ref_counts=made[0],
            covered_tokens=made[1],
            key_blocks=shown[0],
            key_groups=shown[1],
            key_hashes=memoryview(shown[2]).cast("B"),
            rings=rings_of([[numbers[entry] for entry in ring] for ring in self.shared()]),
        )

    def queue(self) -> memoryview[int]:
        """Return the free queue."""
        made = zeroed("i", self.pool.num_free)
        out = made
        block = self.pool.after(0)
        for i in range(self.pool.num_free):
            out[i] = block
            block = self.pool.after(block)
        return made

    def shared(self) -> list[list[int]]:
        """Return the entries of each key that several blocks carry, the first one first."""
        keys, found = self.keys, []
        for entry in range(keys.num_entries):
            after = keys.facts[record.INTS * entry + record.DUP_NEXT]
            if after != 0 and after != entry and keys.slots[keys.slot_of(entry)] != 0:
                found.append(ring_of(keys, entry))
        return found

    # Restoring; the lists of requests already exist.

    def fill(self, columns: Columns, popped: Mapping[int, int], reserved: list[int]) -> None:
        """Take over columns. InvalidArgumentError where they do not fit.

        `popped`, `reserved`: see Core.
        """
        if columns.rest.reserved_blocks != tuple(reserved):
            raise wrong("reserved_blocks", columns.rest.reserved_blocks, f"{reserved}")
        self.check_counts(columns, popped)
        self.check_keys(columns)
        refs, covered = columns.ref_counts, columns.covered_tokens
        for block in range(self.pool.num_blocks):
            self.pool.set_refs(block, refs[block])
            self.pool.set_covered(block, covered[block] // self.hash_block_size)
        self.pool.set_queue(columns.free_queue)
        self.fill_keys(columns)
        if self.pool.order is not None:
            self.pool.order.restore(columns.rest.ranks, columns.free_queue)

    def fill_keys(self, columns: Columns) -> None:
        """Give every block its keys; copies of a key in the order of look-ups."""
        blocks, width = columns.key_blocks, self.keys.width
        groups = columns.key_groups
        words = memoryview(columns.key_hashes).cast("B").cast("Q")
        count = len(blocks)
        entries, is_shared = zeroed("i", count), zeroed("B", count)
        rings = columns.rings
        at = 0
        while at < len(rings):
            for i in range(at + 1, at + 1 + rings[at]):
                is_shared[rings[i]] = 1
            at += 1 + rings[at]
        last = 0
        for k in range(count):
            block = blocks[k]
            entry = self.pool.take_more(block) if block == last else block
            last = block
            entries[k] = entry
            if not is_shared[k]:
                self.keys.add_words(entry, words, k * width, groups[k], 0)
        at = 0
        while at < len(rings):
            head = 0
            for i in range(at + 1, at + 1 + rings[at]):
                k = rings[i]
                self.keys.add_words(entries[k], words, k * width, groups[k], head)
                head = head or entries[k]
            at += 1 + rings[at]

    def check_counts(self, columns: Columns, popped: Mapping[int, int]) -> None:
        """Check that references equal holders, and that free blocks are those without."""
        n, rest = self.pool.num_blocks, columns.rest
        refs, covered, queue = columns.ref_counts, columns.covered_tokens, columns.free_queue
        if rest.num_blocks != n or len(refs) != n or len(covered) != n:
            raise wrong("num_blocks", rest.num_blocks, f"{n}, with as many entries")
        held = zeroed("i", n)
        for row in range(self.tables.num_rows):
            for g in range(self.tables.num_groups):
                at = row * self.tables.num_groups + g
                start = self.tables.start[at]
                for i in range(self.tables.length[at]):
                    held[self.tables.arena[start + i]] += 1
        for block, times in popped.items():
            held[block] += times
        for block in rest.reserved_blocks:
            held[block] += 1
        for pairs in rest.pending_copies:
            for pair in pairs:
                for block in pair:
                    held[block] += 1
        for i in range(len(queue)):
            block = queue[i]
            if block <= 0 or block >= n or held[block]:
                raise wrong("free_queue", block, "blocks without a reference, each once")
            held[block] = -1
        for block in range(1, n):
            if max(held[block], 0) != refs[block] or held[block] == 0:
                raise wrong("ref_counts", block, "a block that is free or as often held")
            if covered[block] < 0 or covered[block] % max(self.hash_block_size, 1):
                raise wrong("covered_tokens", covered[block], "a multiple of the hashed size")

    def check_keys(self, columns: Columns) -> None:
        """Check that keys are in block order, and rings name each at most once."""
        blocks, groups, rings = columns.key_blocks, columns.key_groups, columns.rings
        count, n = len(blocks), self.pool.num_blocks
        size = 8 * self.keys.width * count
        if len(groups) != count or len(columns.key_hashes) != size:
            raise wrong("key_hashes", len(columns.key_hashes), f"{size} bytes")
        last = 1
        for k in range(count):
            if blocks[k] < last or blocks[k] >= n:
                raise wrong("key_blocks", blocks[k], "blocks in order")
            last = blocks[k]
            if groups[k] < 0 or groups[k] >= self.tables.num_groups:
                raise wrong("key_groups", groups[k], "a group")
        seen = zeroed("B", count)
        at = 0
        while at < len(rings):
            end = at + 1 + rings[at]
            if rings[at] < 2 or end > len(rings):
                raise wrong("rings", rings[at], "a length of 2 or more that is there")
            for i in range(at + 1, end):
                if rings[i] < 0 or rings[i] >= count or seen[rings[i]]:
                    raise wrong("rings", rings[i], "a key that no ring named before")
                seen[rings[i]] = 1
            at = end


def wrong(column: str, value: object, allowed: str) -> InvalidArgumentError:
    """Return the error for columns that do not fit together."""
    return InvalidArgumentError(f"columns.{column}", value, allowed)


def ring_of(keys: KeyMap, head: int) -> list[int]:
    """Return the entries with the same key as `head`, starting there."""
    entry, ring = head, [head]
    while (entry := keys.facts[record.INTS * entry + record.DUP_NEXT]) != head:
        ring.append(entry)
    return ring
