"""From the facts of the core to the events of the contract (KV-EVT-*)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from kvspec.config import ManagerConfig
from kvspec.events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventHash,
    ExtraKeys,
    StoredRange,
)
from kvspec.request import RequestInput


class Hashed(Protocol):
    """The part of a request that events show."""

    @property
    def input(self) -> RequestInput: ...

    def hash_at(self, number: int) -> bytes: ...

    def tokens_between(self, start: int, stop: int) -> list[int]: ...


Stored: TypeAlias = tuple[Hashed, int, int, int, int, list[int]]
"""request, group, hashes per block, first block, end block, the blocks that were stored."""

Followed: TypeAlias = tuple[StoredRange, int, int, list[bytes], bytes | None]
"""Blocks stored of a followed request: range, group, hashes per block, hashes, parent."""

Report: TypeAlias = tuple[Stored | Followed]
"""The hit of a request, as if it were stored (KV-EVT-11)."""

Fact: TypeAlias = Stored | Followed | Report | tuple[bytes, int] | None
"""Blocks stored or hit, a key removed (hash, group), or None: everything was cleared."""

KeysOf: TypeAlias = Callable[[RequestInput, int, int], ExtraKeys]
"""The extra keys of the tokens from one place to another."""


def as_events(
    facts: Sequence[Fact], config: ManagerConfig, extra_keys: KeysOf
) -> tuple[Event, ...]:
    """Return the events, in order."""
    return tuple([_event(fact, config, extra_keys) for fact in facts])


def _event(fact: Fact, config: ManagerConfig, extra_keys: KeysOf) -> Event:
    if fact is None:
        return AllBlocksCleared()
    if len(fact) == 2:
        block_hash, group = fact
        return BlockRemoved((_shown(block_hash, config),), MEDIUM_GPU, group)
    if len(fact) == 1:
        return replace(_told(fact[0], config, extra_keys), is_report=True)
    return _told(fact, config, extra_keys)


def _told(fact: Stored | Followed, config: ManagerConfig, extra_keys: KeysOf) -> BlockStored:
    if len(fact) == 5:
        return _followed(fact, config)
    return _stored(fact, config, extra_keys)


def _followed(fact: Followed, config: ManagerConfig) -> BlockStored:
    """Make the event for a request whose tokens the engine keeps (KV-EVT-9)."""
    source, group, per, hashes, parent = fact
    spec = config.managed_specs[group]
    return BlockStored(
        block_hashes=tuple([_shown(each, config) for each in hashes]),
        parent_block_hash=None if parent is None else _shown(parent, config),
        token_ids=(),
        block_size_tokens=per * (config.hash_block_size_tokens or 1),
        lora_id=None,
        lora_name=None,
        medium=MEDIUM_GPU,
        extra_keys=None,
        group=group,
        spec_kind=spec.kind,
        sliding_window_tokens=spec.window_tokens or None,
        source=source,
    )


def _stored(fact: Stored, config: ManagerConfig, extra_keys: KeysOf) -> BlockStored:
    """Make the event of a caching call: its whole range in tokens, but only the stored blocks."""
    request, group, per, first, end, blocks = fact
    spec = config.managed_specs[group]
    size = per * (config.hash_block_size_tokens or 1)
    source = request.input
    parent = _shown(request.hash_at(first * per - 1), config) if first > 0 else None  # KV-EVT-3
    ahead = config.hash_lookahead_tokens
    ends = [(i + 1) * size for i in blocks]
    extras = tuple([extra_keys(source, end - size, end + ahead) for end in ends])  # KV-EVT-8
    behind = tuple([tuple(request.tokens_between(end, end + ahead)) for end in ends if ahead])
    return BlockStored(
        block_hashes=tuple([_shown(request.hash_at((i + 1) * per - 1), config) for i in blocks]),
        parent_block_hash=parent,
        token_ids=tuple(request.tokens_between(first * size, end * size)),
        block_size_tokens=size,
        lora_id=None if source.lora is None else source.lora.id,
        lora_name=None if source.lora is None else source.lora.name,
        medium=MEDIUM_GPU,
        extra_keys=extras or None,
        lookahead_token_ids=behind if ahead else None,  # KV-EVT-10
        group=group,
        spec_kind=spec.kind,
        sliding_window_tokens=spec.window_tokens or None,
    )


def _shown(block_hash: bytes, config: ManagerConfig) -> EventHash:
    """Return all bytes of a hash, or its low 64 bits (KV-EVT-6)."""
    if config.int_event_hashes:
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash
