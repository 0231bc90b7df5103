"""Showing the state beside the pool, and building it from what was shown."""

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
    """Reads and writes the parts of one manager as plain values. The pool is shown by `columns`."""

    def __init__(
        self, pool: BlockPool, tables: Tables, allocator: Allocator, inside: Inside | None
    ) -> None:
        self.pool = pool
        self.tables = tables
        self.allocator = allocator
        self.inside = inside
        self.num_groups = tables.num_groups

    # Showing.

    def rest(
        self,
        rows: Mapping[str, int],
        none_hash: bytes,
        popped: Mapping[int, int],
        reserved: list[int],
    ) -> Snapshot:
        """Return a snapshot without the blocks of the pool and their keys, which are columns."""
        requests = {}
        for name in sorted(rows):
            state = self.request_state(rows[name])
            if any(state.block_ids) or any(count is not None for count in state.num_cached_blocks):
                requests[name] = state
        return Snapshot(
            num_blocks=self.pool.num_blocks,
            free_queue=(),
            ref_counts=(),
            block_keys=(),
            lookup_order={},
            covered_tokens=(),
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
            ranks=() if self.pool.order is None else self.pool.order.shown(),
        )

    def pending_copies(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return the copies not yet taken, per group; () if there are none."""
        if self.inside is None or not any(self.inside.pairs):
            return ()
        return tuple([tuple(pairs) for pairs in self.inside.pairs])

    def key(self, block_hash: bytes, group: int) -> bytes:
        """Return the key of a hash in a group (KV-HASH-6)."""
        return block_hash + group.to_bytes(4, "big")

    def hash_of(self, key: bytes) -> bytes:
        """Return the hash of a key."""
        return key[: len(key) - 4]

    def request_state(self, row: int) -> RequestState:
        """Return the lists of a row."""
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

    def restore_rest(self, snapshot: Snapshot) -> dict[str, int]:
        """Take over all but the blocks of the pool and their keys; the rows of its requests."""
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

    def restore_row(self, state: RequestState) -> int:
        """Make a row with these lists."""
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
