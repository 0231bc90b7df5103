"""Checks of snapshots to be restored; their members may be of any type (KV-MGR-20)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvspec._check import COUNT_MAX
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError, InvariantViolation
from kvspec.invariants import (
    HASH_SIZE_BYTES,
    cached_counts_fit_the_lists,
    check_snapshot,
    ids_fit,
)
from kvspec.snapshot import MambaState, RequestState, Snapshot


def check_restorable(config: ManagerConfig, snapshot: Snapshot) -> None:
    """Raise InvalidArgumentError unless it is a state of a manager with this configuration."""
    _check_types(config, snapshot)
    most = (2**31 - 1) * (config.hash_block_size_tokens or 1)  # blocks are numbered by 31 bits
    if max(snapshot.covered_tokens, default=0) > most:
        raise InvalidArgumentError("snapshot", snapshot.covered_tokens, f"at most {most} a block")
    try:
        check_snapshot(config, snapshot)
    except InvariantViolation as violation:
        raise InvalidArgumentError(
            "snapshot", violation.detail, "a state in which every invariant holds"
        ) from violation


def check_rest(config: ManagerConfig, rest: Snapshot) -> None:
    """Check the part of a snapshot outside its columns, as far as ids index arrays."""
    _check_types(config, rest)
    offence = ids_fit(config, rest) or cached_counts_fit_the_lists(config, rest)
    if offence is not None:
        raise InvalidArgumentError("columns.rest", offence, "of this pool and its groups")


def _check_types(config: ManagerConfig, snapshot: Snapshot) -> None:
    if not isinstance(snapshot, Snapshot):
        raise InvalidArgumentError("snapshot", snapshot, "a Snapshot")
    member = _ill_typed(snapshot)
    if member is not None:
        value = getattr(snapshot, member)
        raise InvalidArgumentError("snapshot", value, f"of the declared types in {member}")
    if len(snapshot.none_hash) != HASH_SIZE_BYTES[config.hash_function]:
        raise InvalidArgumentError(
            "snapshot", snapshot.none_hash, "with a none_hash as long as hashes"
        )


def _ill_typed(snapshot: Snapshot) -> str | None:
    """Return the first member that is not of its declared type; invariants rely on the types."""
    counts = ("free_queue", "ref_counts", "covered_tokens", "popped_blocks", "reserved_blocks")
    for member in counts:
        if not _are_counts(getattr(snapshot, member)):
            return member
    well_typed = {
        "num_blocks": _are_counts((snapshot.num_blocks,)),
        "none_hash": type(snapshot.none_hash) is bytes,
        "block_keys": _is_tuple_of_tuples(snapshot.block_keys)
        and all(_are(bytes, keys) for keys in snapshot.block_keys),
        "new_block_ids": _is_tuple_of_tuples(snapshot.new_block_ids)
        and all(map(_are_counts, snapshot.new_block_ids)),
        "step_keys": type(snapshot.step_keys) is tuple
        and _are(frozenset, snapshot.step_keys)
        and all(_are(bytes, keys) for keys in snapshot.step_keys),
        "pending_copies": _is_tuple_of_tuples(snapshot.pending_copies)
        and all(map(_are_pairs, snapshot.pending_copies)),
        "written_from": isinstance(snapshot.written_from, Mapping)
        and _are_counts((*snapshot.written_from, *snapshot.written_from.values())),
        "lookup_order": isinstance(snapshot.lookup_order, Mapping)
        and _are(bytes, snapshot.lookup_order)
        and all(map(_are_counts, snapshot.lookup_order.values())),
        "requests": isinstance(snapshot.requests, Mapping)
        and _are(str, snapshot.requests)
        and all(map(_is_well_typed, snapshot.requests.values())),
    }
    return next((member for member, is_right in well_typed.items() if not is_right), None)


def _is_well_typed(state: RequestState) -> bool:
    """Return whether the members of a request's state are of their declared types."""
    return (
        type(state) is RequestState
        and _is_tuple_of_tuples(state.block_ids)
        and all(map(_are_counts, state.block_ids))
        and type(state.num_cached_blocks) is tuple
        and _are_counts(tuple(count for count in state.num_cached_blocks if count is not None))
        and type(state.mamba) is tuple
        and all(
            mark is None or (type(mark) is MambaState and type(mark.has_allocated) is bool)
            for mark in state.mamba
        )
    )


def _are_pairs(values: Iterable[object]) -> bool:
    return all(_are_counts(pair) and len(pair) == 2 for pair in values)  # type: ignore[arg-type]  # tuples


def _is_tuple_of_tuples(values: object) -> bool:
    return type(values) is tuple and _are(tuple, values)


def _are(kind: type, values: Iterable[object]) -> bool:
    """Return whether each value is of exactly this type; a subclass may override anything."""
    return set(map(type, values)) <= {kind}


def _are_counts(values: object) -> bool:
    """Return whether it is a tuple of ints in 0 … 2^53 - 1 (KV-ERR-6)."""
    if type(values) is not tuple or not _are(int, values):
        return False
    return not values or 0 <= min(values) <= max(values) <= COUNT_MAX
