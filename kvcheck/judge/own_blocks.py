"""Recorded operations for a subject whose block ids are its own (level behaviour).

Where a recorded operation names blocks, the subject is given those that stand in the same role:
the hit that it answered itself, what it popped itself, the blocks that it keeps the same content
in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvspec.operations import LOOK_UPS
from kvspec.record import Operation
from kvspec.snapshot import Snapshot


@dataclass
class OwnBlocks:
    """What the record and the subject call the same things.

    `look` answers the subject's snapshot, None without one. `keys`, `copies`: what the record shows
    of its own blocks (`block_hash`, `dup_order`) before the operation.
    """

    look: Callable[[], Snapshot | None]
    keys: Sequence[str | None] = ()
    copies: Mapping[str, Sequence[int]] = field(default_factory=dict)
    hits: dict[str | None, tuple[Any, Any]] = field(default_factory=dict)
    popped: list[tuple[int, int]] = field(default_factory=list)

    def arguments(self, operation: Operation) -> Mapping[str, Any] | None:
        """The operation's arguments for the subject; None if it has none that mean the same."""
        given = operation.arguments
        if operation.name == "allocate_slots" and given.get("new_computed_blocks") is not None:
            hit = self._hit(operation)
            return None if hit is None else {**given, "new_computed_blocks": hit}
        if operation.name == "free_blocks":
            return {**given, "block_ids": self._returned(given["block_ids"])}
        if operation.name == "evict_blocks":
            snapshot = self.look()
            if snapshot is None:
                return None
            return {**given, "block_ids": [self._cached(b, snapshot) for b in given["block_ids"]]}
        return given

    def note(self, operation: Operation, result: Any) -> None:
        """Keep what later operations name; the answer was found to be the recorded one."""
        if operation.name in LOOK_UPS:
            self.hits[operation.request_id] = (operation.result["blocks"], result["blocks"])
        elif operation.name == "pop_blocks_for_free":
            self.popped += zip(operation.result, result, strict=True)
        elif operation.name == "free_blocks" and operation.raises is None:
            for block in operation.arguments["block_ids"]:
                self.popped.remove(next(pair for pair in self.popped if pair[0] == block))

    def _hit(self, operation: Operation) -> Any:
        """Its own last answer, or for a made-up hit a block that is free and holds nothing."""
        made = operation.arguments["new_computed_blocks"]
        recorded, own = self.hits.get(operation.request_id, (None, None))
        if operation.raises is None and recorded == made:
            return own
        if any(self.keys[block] is not None for blocks in made for block in blocks):
            return made
        snapshot = self.look()
        if snapshot is None:
            return None
        stale = [block for block in snapshot.free_queue if not snapshot.block_keys[block]]
        return [stale[:1]] if stale else None

    def _returned(self, blocks: Sequence[int]) -> list[int]:
        """Its own popped blocks; for one that was not popped, one that it has not popped."""
        left = list(self.popped)
        own = []
        for block in blocks:
            pair = next((pair for pair in left if pair[0] == block), None)
            if pair is not None:
                left.remove(pair)
                own.append(pair[1])
            else:
                taken = {block for _, block in self.popped}
                num_blocks = len(self.keys)
                own.append(next(b for b in range(1, num_blocks + 1) if b not in taken))
        return own

    def _cached(self, block: int, snapshot: Snapshot) -> int:
        """The block with the same content, of several the one that was registered as early."""
        if not 0 <= block < len(self.keys) or self.keys[block] is None:
            return block
        key = self.keys[block]
        place = list(self.copies.get(key or "", (block,))).index(block)
        own = snapshot.lookup_order.get(bytes.fromhex(key or ""), ())
        return own[place] if place < len(own) else block
