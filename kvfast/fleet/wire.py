"""Batches of events as bytes, in the form that engines publish (KV-FLEET-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kvspec.checks.fleet import check_batch
from kvspec.errors import InvalidArgumentError
from kvspec.events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored, Event, EventHash
from kvspec.fleet import Batch, EngineState, FleetKey, MediumCleared, WireError

END = (-1).to_bytes(8, "big", signed=True)
"""In place of a number: the end of a reply."""
STATE = b"state"
"""In place of a number: a request for the state (KV-FLEET-11)."""

_Hash: TypeAlias = bytes | int
T = TypeVar("T")


class _Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True, kw_only=True):
    block_hashes: list[_Hash]
    # Those with UNSET are written, nil or not, and read where they are left out, as SGLang does.
    parent_block_hash: _Hash | UnsetType | None = UNSET
    token_ids: list[int]
    block_size: int
    lora_id: int | UnsetType | None = UNSET
    medium: str | None = None
    lora_name: str | UnsetType | None = UNSET
    # Each block has its own list or nil; its items belong to the engine, and are not read here.
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    lookahead_token_ids: list[list[int]] | None = None
    is_report: bool = False


class _Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", omit_defaults=True):
    medium: str | None = None


_Told: TypeAlias = _Stored | _Removed | _Cleared
_ARRAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BlockStored": (
            *("block_hashes", "parent_block_hash", "token_ids", "block_size"),
            *("lora_id", "medium", "lora_name"),
        ),
        "BlockRemoved": ("block_hashes", "medium"),
        "AllBlocksCleared": (),
    }
)
"""The members of events that are arrays, after their type and in this order (KV-FLEET-18)."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Told]
    data_parallel_rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class _Typed(msgspec.Struct):
    type: str


@dataclass(frozen=True)
class Message:
    """One message of an engine.

    `rank`: of the engine among its data-parallel equals, 0 where the message names none
    (KV-FLEET-14). `num_unknown`: events of types that no reader knows, passed over (KV-FLEET-13).
    """

    batch: Batch
    rank: int = 0
    num_unknown: int = 0


def encode_batch(batch: Batch, *, rank: int | None = None) -> bytes:
    """Return the payload, without the number. `rank`: of a data-parallel engine, or None."""
    events = [_encoded(event) for event in batch.events]
    return msgspec.msgpack.encode(_Batch(batch.time_s, events, rank))


def decode_batch(number: bytes, payload: bytes) -> Batch:
    """Return the batch in both parts of a message. Raises WireError, and nothing else."""
    return decode_message(number, payload).batch


def decode_message(number: bytes, payload: bytes) -> Message:
    """Return a message from its number and payload. Raises WireError, and nothing else."""
    if len(number) != 8:
        raise WireError(f"its number has {len(number)} bytes, not 8")
    try:
        try:
            found, num_unknown = msgspec.msgpack.decode(payload, type=_Batch), 0
        except msgspec.ValidationError:
            found, num_unknown = _known_events(payload)
        rank = found.data_parallel_rank or 0
        if rank < 0:
            raise WireError(f"its rank is {rank}")
        batch = Batch(
            int.from_bytes(number, "big"),
            found.ts,
            tuple([_decoded(event) for event in found.events]),
        )
        check_batch(batch)
    # Before 0.23, msgspec raises the bare error of text that is not UTF-8.
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        InvalidArgumentError,
        RecursionError,
    ) as error:
        raise WireError(str(error)) from error
    return Message(batch, rank, num_unknown)


def _known_events(payload: bytes) -> tuple[_Batch, int]:
    """Return a batch without its events of unknown types, and how many these are (KV-FLEET-13)."""
    raw = msgspec.msgpack.decode(payload, type=_RawBatch)
    members = [_members(msgspec.msgpack.decode(event)) for event in raw.events]
    known = [each for each in members if msgspec.convert(each, _Typed).type in _ARRAYS]
    events = [msgspec.convert(each, _Told) for each in known]
    return _Batch(raw.ts, events, raw.data_parallel_rank), len(raw.events) - len(known)


def _members(event: object) -> object:
    """Return an event by the names of its members, also one that is an array (KV-FLEET-18)."""
    if not isinstance(event, list) or not event or not isinstance(event[0], str):
        return event
    names = _ARRAYS.get(event[0], ())
    if event[0] in _ARRAYS and len(event) > len(names) + 1:
        raise WireError(f"{event[0]} has {len(event) - 1} members, not {len(names)}")
    return {"type": event[0], **dict(zip(names, event[1:], strict=False))}


def state_as_batch(state: EngineState) -> Batch:
    """Return a state in the form of a batch: clear everything, then add each key (KV-FLEET-11)."""
    hashes: dict[tuple[str, int], list[EventHash]] = {}
    for (medium, group, block_hash), copies in state.keys.items():
        hashes.setdefault((medium, group), []).extend([block_hash] * copies)
    stored = [
        BlockStored(tuple(found), None, (), 0, None, None, medium, None, group, "", None)
        for (medium, group), found in sorted(hashes.items(), key=lambda item: item[0])
    ]
    return Batch(state.number, state.time_s, (AllBlocksCleared(), *stored))


def batch_as_state(batch: Batch) -> EngineState:
    """Decode a state from a batch. Raise WireError for other batches."""
    keys: dict[FleetKey, int] = {}
    first, *rest = batch.events or (None,)
    if not isinstance(first, AllBlocksCleared):
        raise WireError("a state begins with AllBlocksCleared")
    for event in rest:
        if not isinstance(event, BlockStored):
            raise WireError(f"{type(event).__name__} in a state")
        for block_hash in event.block_hashes:
            key = (event.medium, event.group, block_hash)
            keys[key] = keys.get(key, 0) + 1
    return EngineState(batch.number, batch.time_s, keys)


def _encoded(event: Event | MediumCleared) -> _Told:
    if isinstance(event, AllBlocksCleared):
        return _Cleared()
    if isinstance(event, MediumCleared):
        return _Cleared(event.medium)
    if isinstance(event, BlockRemoved):
        return _Removed(list(event.block_hashes), event.medium, event.group)
    ahead = event.lookahead_token_ids
    return _Stored(
        block_hashes=list(event.block_hashes),
        parent_block_hash=event.parent_block_hash,
        token_ids=list(event.token_ids),
        block_size=event.block_size_tokens,
        lora_id=event.lora_id,
        medium=event.medium,
        lora_name=event.lora_name,
        extra_keys=None if event.extra_keys is None else list(event.extra_keys),
        group_idx=event.group,
        kv_cache_spec_kind=event.spec_kind,
        kv_cache_spec_sliding_window=event.sliding_window_tokens,
        lookahead_token_ids=None if ahead is None else [list(each) for each in ahead],
        is_report=event.is_report,
    )


def _decoded(event: _Told) -> Event | MediumCleared:
    if isinstance(event, _Cleared):
        return AllBlocksCleared() if event.medium is None else MediumCleared(event.medium)
    medium, group = event.medium or MEDIUM_GPU, event.group_idx or 0
    if isinstance(event, _Removed):
        return BlockRemoved(tuple(event.block_hashes), medium, group)
    ahead = event.lookahead_token_ids
    return BlockStored(
        block_hashes=tuple(event.block_hashes),
        parent_block_hash=_given(event.parent_block_hash),
        token_ids=tuple(event.token_ids),
        block_size_tokens=event.block_size,
        lora_id=_given(event.lora_id),
        lora_name=_given(event.lora_name),
        medium=medium,
        extra_keys=None if event.extra_keys is None else tuple(map(_frozen, event.extra_keys)),
        group=group,
        spec_kind=event.kv_cache_spec_kind or "",
        sliding_window_tokens=event.kv_cache_spec_sliding_window,
        lookahead_token_ids=None if ahead is None else tuple(map(tuple, ahead)),
        is_report=event.is_report,
    )


def _given(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, however deep."""
    if isinstance(value, list):
        return tuple([_frozen(each) for each in value])
    return dict(value) if isinstance(value, Mapping) else value
