"""Events about the cached keys, in order (KV-EVT-*).

Folding the stream as a multiset (stored: add, removed: subtract, cleared: empty, reports ignored)
gives exactly the keys that are cached at that moment (KV-EVT-7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ExtraKey: TypeAlias = str | bytes | tuple[str, int]
"""An adapter name or salt, an embedding digest, or (item identifier, offset in the block)."""

ExtraKeys: TypeAlias = tuple[ExtraKey, ...] | None

EventHash: TypeAlias = bytes | int
"""A block hash in an event: all its bytes, or its low 64 bits as an unsigned int."""

MEDIUM_GPU = "GPU"


@dataclass(frozen=True)
class StoredRange:
    """The range of tokens of an event without tokens, which the engine keeps (KV-EVT-9).

    The range is blocks `first_block` … `end_block - 1` of the request, of the event's
    `block_size_tokens`; `stored_blocks` are those of its hashes.
    """

    request_id: str
    first_block: int
    end_block: int
    stored_blocks: tuple[int, ...]


@dataclass(frozen=True)
class BlockStored:
    """One caching call of one group (KV-EVT-2).

    `block_hashes`, `extra_keys`: one entry per block that was stored (null and masked blocks have
    none; `extra_keys` is None when there is no entry). `parent_block_hash`: hash of the group's
    block before the range, None at the start. `token_ids`: the tokens of the whole range.
    `block_size_tokens`: tokens per block of the group (per hash for a partial entry). `source`: of
    a followed request; then there are no `token_ids`, no adapter and no `extra_keys` (KV-EVT-9).
    `lookahead_token_ids`: for each hash the tokens after its block that it also covers; None
    without hash look-ahead (KV-EVT-10). `is_report`: nothing was stored now; a request hit blocks
    stored earlier (KV-EVT-11).
    """

    block_hashes: tuple[EventHash, ...]
    parent_block_hash: EventHash | None
    token_ids: tuple[int, ...]
    block_size_tokens: int
    lora_id: int | None
    lora_name: str | None
    medium: str
    extra_keys: tuple[ExtraKeys, ...] | None
    group: int
    spec_kind: str
    sliding_window_tokens: int | None
    source: StoredRange | None = None
    lookahead_token_ids: tuple[tuple[int, ...], ...] | None = None
    is_report: bool = False


@dataclass(frozen=True)
class BlockRemoved:
    """One key of one physical block left the cache (KV-EVT-4)."""

    block_hashes: tuple[EventHash, ...]
    medium: str
    group: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """A successful reset: no key is left (KV-EVT-5)."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
