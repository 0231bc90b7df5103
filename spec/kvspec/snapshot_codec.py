"""Encode snapshots as JSON, every member by its name, and decode them.

The form is that of the protocol (`spec/protocol.md`, Snapshot) and of records that start from a
state (`spec/records.md`). Decoding is strict: a missing or unknown member or a wrong type is a
FormatError that names the member.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from kvspec._json import (
    Where,
    boolean,
    count,
    hex_bytes,
    integer,
    list_of,
    object_of,
    optional,
    structure,
    text,
)
from kvspec.snapshot import MambaState, RequestState, Snapshot


def ints(values: Iterable[Any]) -> list[int]:
    """Convert to plain ints: an implementation may return an array, but never floats."""
    return [index(value) for value in values]


def hexes(hashes: Iterable[bytes]) -> list[str]:
    """Encode hashes as hex."""
    return [block_hash.hex() for block_hash in hashes]


def encode_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Encode every member by its name."""
    return {
        "num_blocks": index(snapshot.num_blocks),
        "free_queue": ints(snapshot.free_queue),
        "ref_counts": ints(snapshot.ref_counts),
        "block_keys": [hexes(keys) for keys in snapshot.block_keys],
        "lookup_order": {key.hex(): ints(ids) for key, ids in snapshot.lookup_order.items()},
        "covered_tokens": ints(snapshot.covered_tokens),
        "none_hash": snapshot.none_hash.hex(),
        "requests": {name: _encode_state(state) for name, state in snapshot.requests.items()},
        "popped_blocks": ints(snapshot.popped_blocks),
        "new_block_ids": [ints(ids) for ids in snapshot.new_block_ids],
        "step_keys": [sorted(hexes(keys)) for keys in snapshot.step_keys],
        "reserved_blocks": ints(snapshot.reserved_blocks),
        **_encode_inside(snapshot),
    }


def _encode_inside(snapshot: Snapshot) -> dict[str, Any]:
    """Encode members that only managers with hits inside a block have, if not empty."""
    found: dict[str, Any] = {}
    if any(snapshot.pending_copies):
        found["pending_copies"] = [list(map(ints, pairs)) for pairs in snapshot.pending_copies]
    if snapshot.written_from:
        found["written_from"] = [[index(b), index(n)] for b, n in snapshot.written_from.items()]
    return found


def _encode_state(state: RequestState) -> dict[str, Any]:
    return {
        "block_ids": [ints(ids) for ids in state.block_ids],
        "num_cached_blocks": [None if n is None else index(n) for n in state.num_cached_blocks],
        "mamba": [
            None if mamba is None else {"has_allocated": bool(mamba.has_allocated)}
            for mamba in state.mamba
        ],
    }


# Ids and counts may be negative here: a snapshot shows the state, right or wrong.
_IDS = list_of(integer)
_STATE = structure(
    {
        "block_ids": list_of(_IDS),
        "num_cached_blocks": list_of(optional(integer)),
        "mamba": list_of(optional(structure({"has_allocated": boolean}))),
    }
)
_SNAPSHOT = structure(
    {
        "num_blocks": count,
        "free_queue": _IDS,
        "ref_counts": _IDS,
        "block_keys": list_of(list_of(hex_bytes)),
        "lookup_order": object_of(_IDS),
        "covered_tokens": _IDS,
        "none_hash": hex_bytes,
        "requests": object_of(_STATE),
        "popped_blocks": _IDS,
        "new_block_ids": list_of(_IDS),
        "step_keys": list_of(list_of(hex_bytes)),
        "reserved_blocks": _IDS,
    },
    {"pending_copies": list_of(list_of(_IDS)), "written_from": list_of(_IDS)},
)


def decode_snapshot(value: object, where: Where) -> Snapshot:
    """Decode a snapshot; raises FormatError."""
    found = _SNAPSHOT(value, where)
    at = where.member("lookup_order")
    return Snapshot(
        num_blocks=found["num_blocks"],
        free_queue=tuple(found["free_queue"]),
        ref_counts=tuple(found["ref_counts"]),
        block_keys=tuple(map(tuple, found["block_keys"])),
        lookup_order={hex_bytes(key, at): tuple(ids) for key, ids in found["lookup_order"].items()},
        covered_tokens=tuple(found["covered_tokens"]),
        none_hash=found["none_hash"],
        requests={
            text(name, where.member("requests")): RequestState(
                block_ids=tuple(map(tuple, state["block_ids"])),
                num_cached_blocks=tuple(state["num_cached_blocks"]),
                mamba=tuple(m if m is None else MambaState(**m) for m in state["mamba"]),
            )
            for name, state in found["requests"].items()
        },
        popped_blocks=tuple(found["popped_blocks"]),
        new_block_ids=tuple(map(tuple, found["new_block_ids"])),
        step_keys=tuple(frozenset(keys) for keys in found["step_keys"]),
        reserved_blocks=tuple(found["reserved_blocks"]),
        pending_copies=tuple(
            _pairs(pairs, where.member("pending_copies"))
            for pairs in found.get("pending_copies", ())
        ),
        written_from=dict(_pairs(found.get("written_from", ()), where.member("written_from"))),
    )


def _pairs(values: Iterable[list[int]], where: Where) -> tuple[tuple[int, int], ...]:
    found = tuple((ids[0], ids[-1]) for ids in values if len(ids) == 2)
    if len(found) != len(tuple(values)):
        raise where.error("has more or less than two numbers in an entry")
    return found
