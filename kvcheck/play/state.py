"""The abstract state of records, computed from a snapshot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvspec.interface import KVCacheManager
from kvspec.record import Observed
from kvspec.snapshot import Snapshot

PART_DIGITS = 16
"""Hex digits of a part's hash: a debugging aid, shorter than the hash of the whole state."""


@dataclass(frozen=True)
class View:
    """A manager's state at one moment, as records show it.

    `seen`: the known part of the state of a manager without a snapshot. `is_later`: with the fields
    of version 3.
    """

    num_free_blocks: int
    usage: float
    snapshot: Snapshot
    seen: Mapping[str, Any] | None = None
    is_later: bool = False

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """Return the state fields of records, computed on demand."""
        if self.seen is not None:
            return self.seen
        state = abstract_state(self.snapshot)
        return state | later_fields(self.snapshot) if self.is_later else state

    @cached_property
    def dup_order(self) -> Mapping[str, list[int]]:
        return duplicate_order(self.snapshot) if self.seen is None else {}


def look(manager: KVCacheManager, *, is_later: bool = False) -> View:
    snapshot = manager.snapshot()
    return View(manager.num_free_blocks, manager.usage, snapshot, is_later=is_later)


def abstract_state(snapshot: Snapshot) -> dict[str, Any]:
    """Return the five state fields; only requests that hold something are listed."""
    requests = snapshot.requests
    return {
        "free_queue": list(snapshot.free_queue),
        "ref_cnt": list(snapshot.ref_counts),
        "block_hash": [keys[0].hex() if keys else None for keys in snapshot.block_keys],
        "req_blocks": {
            name: [list(blocks) for blocks in request.block_ids]
            for name, request in requests.items()
            if any(len(blocks) for blocks in request.block_ids)
        },
        "num_cached_block": {
            name: list(request.num_cached_blocks)
            for name, request in requests.items()
            if any(entry is not None for entry in request.num_cached_blocks)
        },
    }


def later_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return the two fields of version 3; the order of further keys is not that of lists."""
    keys = snapshot.block_keys
    return {
        "hash_tokens": [
            n if k else None for k, n in zip(keys, snapshot.covered_tokens, strict=True)
        ],
        "more_keys": {
            str(block): sorted(key.hex() for key in of_block[1:])
            for block, of_block in enumerate(keys)
            if len(of_block) > 1
        },
    }


def duplicate_order(snapshot: Snapshot) -> dict[str, list[int]]:
    """Return the blocks of every key that at least two blocks carry, in look-up order."""
    return {
        key.hex(): list(blocks) for key, blocks in snapshot.lookup_order.items() if len(blocks) > 1
    }


def canonical_json(value: object) -> bytes:
    """Encode equal values as equal text: members sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def changed(before: View | None, after: View) -> dict[str, Any]:
    """Return the state fields whose value differs (all of them without a `before`)."""
    return {
        name: after.state[name]
        for name in after.state
        if before is None or before.state[name] != after.state[name]
    }


def parts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest(value)[:PART_DIGITS] for name, value in fields.items()}


def observed(after: View, before: View | None, *, is_small: bool) -> Observed:
    """Return what a record shows after a call; `before` is None for the initial state."""
    if not is_small:
        return Observed(
            num_free_blocks=after.num_free_blocks,
            usage=after.usage,
            state_sha256=digest(dict(after.state)),
            state_parts=parts(changed(before, after)),
        )
    order_before = {} if before is None else before.dup_order
    return Observed(
        num_free_blocks=after.num_free_blocks,
        usage=after.usage,
        state=changed(before, after),
        dup_order=after.dup_order if after.dup_order != order_before else None,
    )
