"""vLLM's events as the contract's; its hashes as the follower's, of other functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.adapters.vllm.library import Library
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventHash
from kvspec.snapshot import Snapshot

LOW = 2**64 - 1
"""The part of a hash in events that show an int."""


def translate_event(library: Library, event: Any, *, is_report: bool = False) -> Event:
    """Translate an event, member by member. vLLM does not mark reports."""
    if isinstance(event, library.events.AllBlocksCleared):
        return AllBlocksCleared()
    if isinstance(event, library.events.BlockRemoved):
        return BlockRemoved(tuple(event.block_hashes), event.medium, event.group_idx)
    extra = event.extra_keys
    ahead = getattr(event, "lookahead_token_ids", None)  # vLLM 0.24 has none
    return BlockStored(
        block_hashes=tuple(event.block_hashes),
        parent_block_hash=event.parent_block_hash,
        token_ids=tuple(event.token_ids),
        block_size_tokens=event.block_size,
        lora_id=event.lora_id,
        lora_name=event.lora_name,
        medium=event.medium,
        extra_keys=None if extra is None else tuple(extra),
        group=event.group_idx,
        spec_kind=event.kv_cache_spec_kind,
        sliding_window_tokens=event.kv_cache_spec_sliding_window,
        lookahead_token_ids=None if ahead is None else tuple([tuple(each) for each in ahead]),
        is_report=is_report,
    )


class Names:
    """The follower's names of vLLM's hashes; `shown`: of those in its events, ints or bytes.

    A session may keep a hash that covers a token it has dropped, for which the follower then has
    another: `aliases` maps the later one to the first.
    """

    def __init__(self) -> None:
        self.ours: dict[bytes, bytes] = {}
        self.shown: dict[EventHash, EventHash] = {}
        self.aliases: dict[EventHash, EventHash] = {}
        self.num_known: dict[str, int] = {}

    def add(
        self, theirs: Sequence[bytes], ours: Sequence[bytes], request: str, *, is_new: bool
    ) -> None:
        """Add the hashes of a request; for a known one only the new hashes."""
        known = 0 if is_new else self.num_known.get(request, 0)
        count = min(len(theirs), len(ours))
        for their, our in zip(theirs[known:count], ours[known:count], strict=True):
            if their not in self.ours:
                self.ours[their] = our
                self.shown[their] = our
                self.shown[int.from_bytes(their, "big") & LOW] = our
            elif self.ours[their] != our:
                self.aliases[our] = self.ours[their]
        self.num_known[request] = count

    def theirs(self, event: Event) -> Event:
        """Return vLLM's event with the follower's names; a hash of no request keeps its own."""
        return self.own(_with(event, self.shown))

    def own(self, event: Event) -> Event:
        return _with(event, self.aliases)


def _with(event: Event, names: Mapping[EventHash, EventHash]) -> Event:
    if isinstance(event, AllBlocksCleared):
        return event
    found = tuple(names.get(each, each) for each in event.block_hashes)
    if isinstance(event, BlockRemoved):
        return replace(event, block_hashes=found)
    parent = event.parent_block_hash
    parent = None if parent is None else names.get(parent, parent)
    return replace(event, block_hashes=found, parent_block_hash=parent)


def renamed(snapshot: Snapshot, hashes: Mapping[bytes, bytes]) -> Snapshot:
    """Return the same state with the follower's hash in each key (hash and 4 bytes of group)."""

    def key(theirs: bytes) -> bytes:
        return hashes.get(theirs[:-4], theirs[:-4]) + theirs[-4:]

    return replace(
        snapshot,
        block_keys=tuple(tuple(map(key, keys)) for keys in snapshot.block_keys),
        lookup_order={key(each): ids for each, ids in snapshot.lookup_order.items()},
        step_keys=tuple(frozenset(map(key, keys)) for keys in snapshot.step_keys),
    )
