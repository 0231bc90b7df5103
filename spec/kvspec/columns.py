"""The state of a pool as flat columns, the content of its file (`kvspec.saved`).

A snapshot of a million blocks is some million tuples. Columns hold the same in a few arrays, which
are written to a file and read back unchanged. A manager that can show them does so by `columns()`,
and an implementation that can take them by `restore_columns(config, columns)`; for all others
columns are made of a snapshot, and a snapshot of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.invariants import GROUP_SIZE_BYTES
from kvspec.snapshot import Snapshot

Ints: TypeAlias = "array[int] | memoryview[int]"

CODES: Mapping[str, str] = {
    **{"free_queue": "i", "ref_counts": "i", "covered_tokens": "q"},
    **{"key_blocks": "i", "key_groups": "i", "key_hashes": "B", "rings": "i"},
}
"""Members of `Columns` that are arrays, with their types: "i" 32 bits, "q" 64, "B" bytes."""


@dataclass(frozen=True, eq=False)
class Columns:
    """A whole snapshot. `rest` is a snapshot without the data in the columns.

    `free_queue`, `ref_counts` and `covered_tokens` are those of the snapshot. Key k of the pool
    belongs to block `key_blocks[k]`, with the hash at `k * size` of `key_hashes` and the group
    `key_groups[k]`: block after block, the primary key of each first. `rings`: for each key that
    several blocks carry, their number and then the numbers of these keys, in the order in which
    look-ups return them.
    """

    rest: Snapshot
    free_queue: Ints
    ref_counts: Ints
    covered_tokens: Ints
    key_blocks: Ints
    key_groups: Ints
    key_hashes: bytes | bytearray | memoryview[int]
    rings: Ints

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        mine = [bytes(getattr(self, name)) for name in CODES]
        return self.rest == other.rest and mine == [bytes(getattr(other, n)) for n in CODES]

    __hash__ = None  # type: ignore[assignment]  # arrays may change


@runtime_checkable
class ColumnManager(Protocol):
    """A manager that shows its state as columns at once."""

    def columns(self) -> Columns:
        """Return the columns of `snapshot()` (KV-MGR-20). Pure; O(pool)."""


@runtime_checkable
class ColumnImplementation(Protocol):
    """An implementation that can restore columns directly."""

    def restore_columns(self, config: ManagerConfig, columns: Columns) -> KVCacheManager:
        """Restore the same snapshot, without an audit around the manager.

        InvalidArgumentError where ids, counts, the free queue and references do not fit together;
        the other invariants are the caller's.
        """


def without_pool(snapshot: Snapshot) -> Snapshot:
    """Return the part of a snapshot that columns leave out."""
    return replace(
        snapshot, free_queue=(), ref_counts=(), block_keys=(), lookup_order={}, covered_tokens=()
    )


def columns_of(snapshot: Snapshot) -> Columns:
    """Convert a snapshot to columns."""
    blocks, groups, hashes = array("i"), array("i"), bytearray()
    number: dict[tuple[bytes, int], int] = {}
    for block, keys in enumerate(snapshot.block_keys):
        for key in keys:
            number[key, block] = len(blocks)
            blocks.append(block)
            groups.append(int.from_bytes(key[-GROUP_SIZE_BYTES:], "big"))
            hashes += key[:-GROUP_SIZE_BYTES]
    shared = [
        [number[key, block] for block in found]
        for key, found in snapshot.lookup_order.items()
        if len(found) > 1
    ]
    return Columns(
        rest=without_pool(snapshot),
        free_queue=array("i", snapshot.free_queue),
        ref_counts=array("i", snapshot.ref_counts),
        covered_tokens=array("q", snapshot.covered_tokens),
        key_blocks=blocks,
        key_groups=groups,
        key_hashes=hashes,
        rings=rings_of(shared),
    )


def rings_of(shared: Sequence[Sequence[int]]) -> array[int]:
    """Build the column `rings`, by smallest number, so that equal states give equal columns."""
    rings = array("i")
    for ring in sorted(shared, key=min):
        rings.append(len(ring))
        rings.extend(ring)
    return rings


def snapshot_of(columns: Columns, hash_bytes: int) -> Snapshot:
    """Convert columns to a snapshot; ValueError or IndexError if they do not fit together."""
    hashes, rest = bytes(columns.key_hashes), columns.rest
    blocks, groups = list(columns.key_blocks), list(columns.key_groups)
    if len(hashes) != hash_bytes * len(blocks) or len(groups) != len(blocks):
        raise ValueError("columns of keys that differ in length")
    keys = [
        hashes[hash_bytes * k : hash_bytes * (k + 1)] + group.to_bytes(GROUP_SIZE_BYTES, "big")
        for k, group in enumerate(groups)
    ]
    of_block: list[list[bytes]] = [[] for _ in range(rest.num_blocks)]
    lookup: dict[bytes, list[int]] = {}
    for key, block in zip(keys, blocks, strict=True):
        of_block[block].append(key)
        lookup.setdefault(key, []).append(block)
    rings = iter(columns.rings)
    for length in rings:
        ring = [next(rings) for _ in range(length)]
        lookup[keys[ring[0]]] = [blocks[k] for k in ring]
    pool: dict[str, Any] = {
        name: tuple(getattr(columns, name))
        for name in ("free_queue", "ref_counts", "covered_tokens")
    }
    return replace(
        rest,
        block_keys=tuple(map(tuple, of_block)),
        lookup_order={key: tuple(found) for key, found in lookup.items()},
        **pool,
    )
