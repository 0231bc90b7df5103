"""Mutants of events (KV-EVT-*)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvref.events import EventLog
from kvref.hashing import extra_keys, split_key, untagged
from kvspec.events import MEDIUM_GPU, BlockRemoved, BlockStored, Event, EventHash
from tests.mutants.make import classes_in


class ChangesStored(EventLog):
    """Not broken by itself: lets a mutant change the last Stored event."""

    def stored(self, request: Any, **how: Any) -> None:
        super().stored(request, **how)
        if self.enabled and isinstance(self.queue[-1], BlockStored):
            self.queue[-1] = self.changed(self.queue[-1], request, how)

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        """The event that goes out."""
        return event


class HashesInReverse(ChangesStored):
    """KV-EVT-2: the last block of a Stored event comes first."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, block_hashes=event.block_hashes[::-1])


class NoParent(ChangesStored):
    """KV-EVT-3: a Stored event names no parent."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, parent_block_hash=None)


class FirstParentIsNoneHash(ChangesStored):
    """KV-EVT-3: at the start the parent is NONE_HASH, not None."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        if event.parent_block_hash is not None:
            return event
        return replace(event, parent_block_hash=self._shown(request.hasher.none_hash))


class ParentIsTheFirstStored(ChangesStored):
    """KV-EVT-3: the parent is the first block of the range itself."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        if event.parent_block_hash is None or not event.block_hashes:
            return event
        return replace(event, parent_block_hash=event.block_hashes[0])


class ParentAtHashSize(ChangesStored):
    """KV-EVT-3: the parent is the hash before the range, also where a block has several hashes."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        first = how["first_block"]
        hashes = request.block_hashes
        if event.parent_block_hash is None or first > len(hashes):
            return event
        return replace(event, parent_block_hash=self._shown(hashes[first - 1]))


class TokensOfStoredBlocksOnly(ChangesStored):
    """KV-EVT-2: tokens of blocks that were passed over are left out."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        size = how["block_size_tokens"]
        tokens = [t for i in how["stored_blocks"] for t in request.token_ids[i * size :][:size]]
        return replace(event, token_ids=tuple(tokens))


class TokensFromTheStart(ChangesStored):
    """KV-EVT-2: the tokens are all up to the end of the range."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        end = how["end_block"] * how["block_size_tokens"]
        return replace(event, token_ids=tuple(request.token_ids[:end]))


class SizeOfTheSpec(ChangesStored):
    """KV-EVT-2, KV-FULL-5: the block size is that without context parallelism."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, block_size_tokens=how["spec"].block_size)


class AdapterIsNotTold(ChangesStored):
    """KV-EVT-2: Stored events name no adapter."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, lora_id=None, lora_name=None)


class ExtraKeysAreNotTold(ChangesStored):
    """KV-EVT-8: Stored events carry no extra keys."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, extra_keys=None)


class PlainBlocksAreLeftOut(ChangesStored):
    """KV-EVT-8: blocks without extra keys have no entry, so the others move up."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        kept = tuple(extra for extra in event.extra_keys or () if extra is not None)
        return replace(event, extra_keys=kept or None)


class ExtraKeysWithTheirKinds(ChangesStored):
    """KV-EVT-8: the extra keys go out as they are hashed, a salt as cache_salt and its text."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        salt = request.input.cache_salt
        shown = tuple(
            tuple(("cache_salt", key) if key == salt else key for key in keys) if keys else None
            for keys in event.extra_keys or ()
        )
        return replace(event, extra_keys=shown or None)  # type: ignore[arg-type]  # the mistake


class ExtraKeysOfTheFirstBlock(ChangesStored):
    """KV-EVT-8: every block of an event carries the extra keys of the request's first."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        first = untagged(extra_keys(request.input, 0, how["block_size_tokens"]))
        return replace(event, extra_keys=tuple(first for _ in event.extra_keys or ()) or None)


class GroupZeroStores(ChangesStored):
    """KV-EVT-2: Stored events are all of group 0."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, group=0)


class WindowIsNotTold(ChangesStored):
    """KV-EVT-2: Stored events do not say how long the window is."""

    def changed(self, event: BlockStored, request: Any, how: dict[str, Any]) -> BlockStored:
        return replace(event, sliding_window_tokens=None)


class OneEventPerBlock(EventLog):
    """KV-EVT-2: every stored block has an event of its own."""

    def stored(self, request: Any, **how: Any) -> None:
        parent = how["parent_hash"]
        for place, (index, block_hash) in enumerate(
            zip(how["stored_blocks"], how["hashes"], strict=True)
        ):
            one = {"first_block": index, "end_block": index + 1, "stored_blocks": [index]}
            more = {"hashes": how["hashes"][place : place + 1], "parent_hash": parent}
            super().stored(request, **{**how, **one, **more})
            parent = block_hash


class NothingStoredNothingTold(EventLog):
    """KV-EVT-2: a range of which nothing is worth caching has no event."""

    def stored(self, request: Any, **how: Any) -> None:
        if how["stored_blocks"]:
            super().stored(request, **how)


class StoredIsNotTold(EventLog):
    """KV-EVT-2, KV-EVT-7: only removals are told."""

    def stored(self, request: Any, **how: Any) -> None:
        pass


class GroupZeroRemoves(EventLog):
    """KV-EVT-4: Removed events are all of group 0."""

    def removed(self, key: bytes) -> None:
        if self.enabled:
            block_hash, _ = split_key(key)
            self.queue.append(BlockRemoved((self._shown(block_hash),), MEDIUM_GPU, 0))


class RemovalsAreMerged(EventLog):
    """KV-EVT-4: removals that follow each other become one event."""

    def removed(self, key: bytes) -> None:
        super().removed(key)
        if len(self.queue) < 2:
            return
        before, last = self.queue[-2:]
        if not isinstance(before, BlockRemoved) or not isinstance(last, BlockRemoved):
            return
        if before.group == last.group:
            hashes = before.block_hashes + last.block_hashes
            self.queue[-2:] = [replace(before, block_hashes=hashes)]


class RemovalsFirst(EventLog):
    """KV-EVT-1: removals are told before what was stored earlier."""

    def take(self) -> tuple[Event, ...]:
        taken = super().take()
        return tuple(sorted(taken, key=lambda event: not isinstance(event, BlockRemoved)))


class EventsAreTakenTwice(EventLog):
    """KV-EVT-1: the queue is never emptied."""

    def take(self) -> tuple[Event, ...]:
        return tuple(self.queue)


class ClearedForgetsTheQueue(EventLog):
    """KV-EVT-1, KV-EVT-5: a reset drops the events that were not taken yet."""

    def cleared(self) -> None:
        self.queue = []
        super().cleared()


class HighBitsAreShown(EventLog):
    """KV-EVT-6: int hashes are the first eight bytes, not the last."""

    def _shown(self, block_hash: bytes) -> EventHash:
        return int.from_bytes(block_hash[:8], "big") if self.int_hashes else block_hash


class IntsAreShownAsBytes(EventLog):
    """KV-EVT-6: int hashes go out as eight bytes."""

    def _shown(self, block_hash: bytes) -> EventHash:
        return block_hash[-8:] if self.int_hashes else block_hash


class SignedIntsAreShown(EventLog):
    """KV-EVT-6: int hashes are signed."""

    def _shown(self, block_hash: bytes) -> EventHash:
        if not self.int_hashes:
            return block_hash
        return int.from_bytes(block_hash[-8:], "big", signed=True)


MUTANTS = classes_in(__name__)
