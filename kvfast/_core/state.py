"""Showing the whole state, and building a state from what was shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvspec.snapshot import MambaState, RequestState, Snapshot

from .allocator import Allocator
from .inside import Inside
from .pool import BlockPool
from .tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping


class StateView:
    """Reads and writes the parts of one manager as plain values. Slow: O(pool) and more."""

    def __init__(
        self, pool: BlockPool, tables: Tables, allocator: Allocator, inside: Inside | None
    ) -> None:
        self.pool = pool
        self.tables = tables
        self.allocator = allocator
        self.inside = inside
        self.num_groups = tables.num_groups

    # Showing.

    def snapshot(
        self,
        rows: Mapping[str, int],
        *,
        none_hash: bytes,
        hash_block_size: int,
        popped: Mapping[int, int],
        reserved: list[int],
    ) -> Snapshot:
        """The abstract state."""
        n = self.pool.num_blocks
        keys = [self.keys_of(block) for block in range(n)]
        requests = {}
        for name in sorted(rows):
            state = self.request_state(rows[name])
            if any(state.block_ids) or any(count is not None for count in state.num_cached_blocks):
                requests[name] = state
        return Snapshot(
            num_blocks=n,
            free_queue=tuple(self.pool.queue()),
            ref_counts=tuple([self.pool.refs(block) for block in range(n)]),
            block_keys=tuple(keys),
            lookup_order=self.lookup_order(),
            covered_tokens=tuple(
                [self.pool.covered(b) * hash_block_size if keys[b] else 0 for b in range(n)]
            ),
            none_hash=none_hash,
            requests=requests,
            popped_blocks=tuple(sorted([b for b, count in popped.items() for _ in range(count)])),
            new_block_ids=tuple(map(tuple, self.allocator.to_zero.lists(self.tables.num_groups))),
            step_keys=tuple(
                [
                    frozenset([self.key(found, g) for found in hashes])
                    for g, hashes in enumerate(self.allocator.step_hashes)
                ]
            ),
            reserved_blocks=tuple(reserved),
            pending_copies=self.pending_copies(),
            written_from={} if self.inside is None else dict(self.inside.written),
        )

    def pending_copies(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per group the copies that nobody took yet; () where there are none."""
        if self.inside is None or not any(self.inside.pairs):
            return ()
        return tuple([tuple(pairs) for pairs in self.inside.pairs])

    def key(self, block_hash: bytes, group: int) -> bytes:
        """The key of a hash in a group (KV-HASH-6)."""
        return block_hash + group.to_bytes(4, "big")

    def hash_of(self, key: bytes) -> bytes:
        """The hash of a key."""
        return key[: len(key) - 4]

    def keys_of(self, block: int) -> tuple[bytes, ...]:
        """The keys of a block, the primary one first."""
        keys = self.pool.keys
        return tuple(
            [self.key(keys.hash_of(e), keys.group_of(e)) for e in self.pool.entries_of(block)]
        )

    def lookup_order(self) -> dict[bytes, tuple[int, ...]]:
        """For each key the blocks that carry it, first answered first."""
        found = {}
        keys = self.pool.keys
        for head in keys.heads():
            blocks = tuple([self.pool.block_of(entry) for entry in keys.ring_of(head)])
            found[self.key(keys.hash_of(head), keys.group_of(head))] = blocks
        return found

    def request_state(self, row: int) -> RequestState:
        """The lists of a row."""
        lists = []
        counts: list[int | None] = []
        marks: list[MambaState | None] = []
        for g in range(self.num_groups):
            at = row * self.num_groups + g
            lists.append(tuple(self.tables.to_list(at)))
            cached = self.tables.cached[at]
            counts.append(cached - 1 if cached else None)
            aligned = self.allocator.shape.is_aligned(g)
            marks.append(MambaState(self.tables.allocated[at] != 0) if aligned else None)
        return RequestState(tuple(lists), tuple(counts), tuple(marks))

    # Building; everything is as after the start of a manager.

    def restore(self, snapshot: Snapshot, hash_block_size: int) -> dict[str, int]:
        """Take over a state in which every invariant holds; the rows of its requests."""
        self.pool.set_queue(snapshot.free_queue)
        for block in range(self.pool.num_blocks):
            self.pool.set_refs(block, snapshot.ref_counts[block])
            self.pool.set_covered(block, snapshot.covered_tokens[block] // hash_block_size)
        self.restore_keys(snapshot)
        rows = {}
        for name, state in snapshot.requests.items():
            rows[name] = self.restore_row(state)
        for g, blocks in enumerate(snapshot.new_block_ids):
            for block in blocks:
                self.allocator.to_zero.add(g, block)
        for g, keys in enumerate(snapshot.step_keys):
            for key in keys:
                self.allocator.step_hashes[g].add(self.hash_of(key))
        if self.inside is not None:
            for g, pairs in enumerate(snapshot.pending_copies):
                self.inside.pairs[g].extend(pairs)
            self.inside.written.update(snapshot.written_from)
        return rows

    def restore_keys(self, snapshot: Snapshot) -> None:
        """Every key in its block, and the order of blocks with the same key."""
        entries: dict[tuple[int, bytes], int] = {}
        for block, keys in enumerate(snapshot.block_keys):
            for number, key in enumerate(keys):
                entry = block if number == 0 else self.pool.take_more(block)
                entries[block, key] = entry
        for key, blocks in snapshot.lookup_order.items():
            group = int.from_bytes(key[len(key) - 4 :], "big")
            head = 0
            for block in blocks:
                entry = entries[block, key]
                self.pool.keys.add_hash(entry, self.hash_of(key), group, head)
                head = head or entry

    def restore_row(self, state: RequestState) -> int:
        """A row with these lists."""
        row = self.tables.take_row()
        for g in range(self.num_groups):
            at = row * self.num_groups + g
            blocks = state.block_ids[g]
            self.tables.make_room(at, g, len(blocks))
            for block in blocks:
                self.tables.append(at, block)
            count = state.num_cached_blocks[g]
            self.tables.cached[at] = 0 if count is None else 1 + count
            mark = state.mamba[g] if g < len(state.mamba) else None
            self.tables.allocated[at] = 1 if mark is not None and mark.has_allocated else 0
        return row
