"""Checks of snapshots to be restored; their members may be of any type (KV-MGR-20)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from kvspec.config import ManagerConfig
from kvspec.domains import COUNT_MAX
from kvspec.errors import InvalidArgumentError, InvariantViolation
from kvspec.invariants import HASH_SIZE_BYTES, cached_counts_fit_the_lists, check_snapshot, ids_fit
from kvspec.snapshot import Snapshot


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
    offence = ids_fit(config, rest) or cached_counts_fit_the_lists.first_offence(config, rest)
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
    hints = get_type_hints(Snapshot).items()
    return next((name for name, hint in hints if not _are(hint, [getattr(snapshot, name)])), None)


def _are(hint: Any, values: Collection[Any]) -> bool:
    """Return whether each value is of exactly this type; a subclass may override anything.

    An int is a count: 0 … 2^53 - 1 (KV-ERR-6).
    """
    kind, inner, types = get_origin(hint), get_args(hint), set(map(type, values))
    if kind is UnionType:
        return _are(inner[0], [each for each in values if each is not None])
    if kind is Mapping:
        pairs = all(isinstance(each, Mapping) for each in values)
        return pairs and all(
            _are(inner[0], v.keys()) and _are(inner[1], v.values()) for v in values
        )
    if not types <= {kind or hint}:
        return False
    if hint is int:
        return not values or 0 <= min(values) <= max(values) <= COUNT_MAX
    if is_dataclass(hint):
        members = get_type_hints(hint).items()
        return all(_are(each, [getattr(v, name) for v in values]) for name, each in members)
    if kind is tuple and inner[-1] is not ...:
        ends = all(len(each) == len(inner) for each in values)
        return ends and all(map(_are, inner, zip(*values, strict=True)))
    return kind is None or all(_are(inner[0], each) for each in values)
