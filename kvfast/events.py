"""From the facts of the core to the events of the contract (KV-EVT-*)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvfast._core.extra_keys import extra_keys
from kvspec.events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventHash,
)
from kvspec.specs import SlidingWindowSpec

if TYPE_CHECKING:
    from kvfast._core.event_log import Fact, Stored
    from kvfast.configuration import Plan


def as_events(facts: Sequence[Fact], plan: Plan) -> tuple[Event, ...]:
    """The events, in order."""
    return tuple([_event(fact, plan) for fact in facts])


def _event(fact: Fact, plan: Plan) -> Event:
    if fact is None:
        return AllBlocksCleared()
    if len(fact) == 2:
        block_hash, group = fact
        return BlockRemoved((_shown(block_hash, plan),), MEDIUM_GPU, group)
    return _stored(fact, plan)


def _stored(fact: Stored, plan: Plan) -> BlockStored:
    """One caching call: its whole range in tokens, but only the blocks that were stored."""
    request, group, per, first, end, blocks = fact
    spec = plan.groups[group].spec
    size = per * (plan.config.hash_block_size_tokens or 1)
    source = request.input
    parent = _shown(request.hash_at(first * per - 1), plan) if first > 0 else None  # KV-EVT-3
    extras = tuple([extra_keys(source, i * size, (i + 1) * size) for i in blocks])  # KV-EVT-8
    return BlockStored(
        block_hashes=tuple([_shown(request.hash_at((i + 1) * per - 1), plan) for i in blocks]),
        parent_block_hash=parent,
        token_ids=tuple(request.tokens_between(first * size, end * size)),
        block_size_tokens=size,
        lora_id=None if source.lora is None else source.lora.id,
        lora_name=None if source.lora is None else source.lora.name,
        medium=MEDIUM_GPU,
        extra_keys=extras or None,
        group=group,
        spec_kind=spec.kind,
        sliding_window_tokens=spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None,
    )


def _shown(block_hash: bytes, plan: Plan) -> EventHash:
    """All bytes of a hash, or its low 64 bits (KV-EVT-6)."""
    if plan.config.int_event_hashes:
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash
