"""The event queue: changes of the cached keys, in order (KV-EVT-*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.following import FollowedRequest
from kvref.hashing import extra_keys, split_key, untagged
from kvref.request import ReferenceRequest
from kvspec.events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventHash,
    StoredRange,
)
from kvspec.specs import LayerSpec


class EventLog:
    """Events since the last `take`. With events off, nothing is ever queued (KV-EVT-1)."""

    def __init__(self, enabled: bool, int_hashes: bool) -> None:
        self.enabled = enabled
        self.int_hashes = int_hashes
        self.queue: list[Event] = []

    def stored(
        self,
        request: ReferenceRequest,
        *,
        group: int,
        spec: LayerSpec,
        block_size_tokens: int,
        first_block: int,
        end_block: int,
        stored_blocks: Sequence[int],
        hashes: Sequence[bytes],
        parent_hash: bytes | None,
        is_report: bool = False,
    ) -> None:
        """Queue an event for a caching call over blocks `first_block` … `end_block - 1` (KV-EVT-2).

        `stored_blocks`: the indices that were stored (no null, no masked ones), with their
        `hashes`; `parent_hash`: of the block before (KV-EVT-3); `is_report`: of a hit (KV-EVT-11).
        """
        if not self.enabled:
            return
        size = block_size_tokens
        event = BlockStored(
            block_hashes=tuple(self._shown(block_hash) for block_hash in hashes),
            parent_block_hash=None if parent_hash is None else self._shown(parent_hash),
            token_ids=(),
            block_size_tokens=size,
            lora_id=None,
            lora_name=None,
            medium=MEDIUM_GPU,
            extra_keys=None,
            group=group,
            spec_kind=spec.kind,
            sliding_window_tokens=spec.window_tokens or None,
            is_report=is_report,
        )
        if isinstance(request, FollowedRequest):  # KV-EVT-9
            name, blocks = request.request_id, tuple(stored_blocks)
            event = replace(event, source=StoredRange(name, first_block, end_block, blocks))
        else:
            ahead, lora = request.hasher.lookahead_tokens, request.input.lora
            extras = tuple(  # KV-EVT-8
                untagged(extra_keys(request.input, index * size, (index + 1) * size + ahead))
                for index in stored_blocks
            )
            behind = tuple(  # KV-EVT-10
                tuple(request.token_ids[(index + 1) * size : (index + 1) * size + ahead])
                for index in stored_blocks
            )
            event = replace(
                event,
                token_ids=tuple(request.token_ids[first_block * size : end_block * size]),
                lora_id=lora.id if lora is not None else None,
                lora_name=lora.name if lora is not None else None,
                extra_keys=extras if extras else None,
                lookahead_token_ids=behind if ahead > 0 else None,
            )
        self.queue.append(event)

    def removed(self, key: bytes) -> None:
        """Queue an event for a key that left one physical block (KV-EVT-4)."""
        if self.enabled:
            block_hash, group = split_key(key)
            self.queue.append(BlockRemoved((self._shown(block_hash),), MEDIUM_GPU, group))

    def cleared(self) -> None:
        """Queue the event of a reset (KV-EVT-5)."""
        if self.enabled:
            self.queue.append(AllBlocksCleared())

    def take(self) -> tuple[Event, ...]:
        """Return the queued events and empty the queue."""
        events = tuple(self.queue)
        self.queue = []
        return events

    def _shown(self, block_hash: bytes) -> EventHash:
        """Return the hash as events show it: all its bytes, or its low 64 bits (KV-EVT-6)."""
        return int.from_bytes(block_hash[-8:], "big") if self.int_hashes else block_hash
