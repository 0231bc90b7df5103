"""Ownership of blocks, according to the results of a manager.

Its cost depends on what a call changes, not on the size of the pool. Memory: one number per block,
and the block lists of the requests that hold any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.errors import InvariantViolation
from kvspec.snapshot import Snapshot

Lists: TypeAlias = "tuple[tuple[int, ...], ...]"
"""Block ids, one tuple per group."""


def violated(invariant: str, rule: str, detail: str) -> InvariantViolation:
    """Return the violation of an invariant that only the monitor checks, ready to raise."""
    return InvariantViolation(invariant, rule, detail)


class Ownership:
    """Block lists and popped references; `counts[b]` is how often block b is held.

    `num_set_aside`: blocks that are neither free nor held from the beginning on (attention sinks).
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.num_blocks = num_blocks
        self.num_groups = num_groups
        self.counts = [0] * num_blocks
        self.lists: dict[str, Lists] = {}
        self.popped: Counter[int] = Counter()
        self.num_set_aside = 0
        self._num_held = 0

    def start_from(self, snapshot: Snapshot) -> None:
        for name, state in snapshot.requests.items():
            self.replace(name, tuple(map(tuple, state.block_ids)))
        self.pop(snapshot.popped_blocks)

    @property
    def num_held(self) -> int:
        """Blocks with at least one holder."""
        return self._num_held

    @property
    def num_free(self) -> int:
        return self.num_blocks - 1 - self.num_set_aside - self._num_held

    @property
    def size_bytes(self) -> int:
        ids = sum(len(blocks) for lists in self.lists.values() for blocks in lists)
        return 8 * self.num_blocks + 8 * ids + 300 * len(self.lists) + 100 * len(self.popped)

    def checked(self, blocks: KVCacheBlocks, what: str) -> Lists:
        """Return the ids of a result, one tuple per group, checked to be in the pool."""
        if len(blocks.groups) != self.num_groups:
            raise violated(
                "has_the_right_shape",
                "KV-CFG-2",
                f"{what} has {len(blocks.groups)} lists for {self.num_groups} groups",
            )
        lists = tuple(tuple(ids) for ids in blocks.groups)
        for ids in lists:
            self.check_ids(ids, what)
        return lists

    def check_ids(self, ids: Sequence[int], what: str) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.num_blocks:
            raise violated(
                "has_the_right_shape",
                "KV-CFG-2",
                f"{what} has a block id outside 0 … {self.num_blocks - 1}: {list(ids)}",
            )

    def replace(self, name: str, lists: Lists) -> None:
        """Set the request's lists; all empty: it holds nothing."""
        old = self.lists.get(name, ((),) * len(lists))
        for before, after in zip(old, lists, strict=True):
            if after[: len(before)] == before:
                self._hold(after[len(before) :])
            else:
                self._hold(after)
                self._let_go(before)
        if any(lists):
            self.lists[name] = lists
        else:
            self.lists.pop(name, None)

    def pop(self, blocks: Iterable[int]) -> None:
        """Hold references that have left the lists."""
        held = [block for block in blocks if block != NULL_BLOCK]
        self.popped.update(held)
        self._hold(held)

    def return_popped(self, blocks: Sequence[int]) -> None:
        """Drop returned references. Raise InvariantViolation for one that was not popped."""
        for block, times in Counter(blocks).items():
            if block == NULL_BLOCK:
                continue
            if self.popped[block] < times:
                raise violated(
                    "only_popped_blocks_are_returned",
                    "KV-POOL-9",
                    f"block {block} was taken back {times} times,"
                    f" popped and not yet returned {self.popped[block]} times",
                )
            self.popped[block] -= times
            if not self.popped[block]:
                del self.popped[block]
            self._let_go([block] * times)

    def check_new(self, name: str, blocks: Iterable[int]) -> None:
        """Check that newly allocated blocks have this one owner."""
        for block in blocks:
            if block != NULL_BLOCK and self.counts[block] != 1:
                others = [
                    other
                    for other, lists in self.lists.items()
                    if any(block in blocks for blocks in lists)
                ]
                raise violated(
                    "a_new_block_has_one_owner",
                    "KV-POOL-3",
                    f"block {block} was handed out to {name} as new, and is held"
                    f" {self.counts[block]} times: in lists of {', '.join(others) or 'nobody'}"
                    + (", and popped" if self.popped[block] else ""),
                )

    def check_conservation(self, num_free: int) -> None:
        """Free and held blocks are all blocks."""
        if num_free != self.num_free:
            fate = "leaked" if num_free < self.num_free else "both free and held"
            raise violated(
                "space_is_conserved",
                "KV-POOL-15",
                f"{num_free} blocks are free, {self._num_held} are held and {self.num_set_aside}"
                f" set aside, of {self.num_blocks - 1}: {abs(num_free - self.num_free)} {fate}",
            )

    def check_agrees(self, snapshot: Snapshot) -> None:
        """Check that a snapshot shows the lists and popped blocks that the results showed."""
        shown = {
            name: tuple(map(tuple, state.block_ids))
            for name, state in snapshot.requests.items()
            if any(state.block_ids)
        }
        for name in {**shown, **self.lists}:
            if shown.get(name) != self.lists.get(name):
                raise violated(
                    "answers_tell_the_state",
                    "KV-GRP-1",
                    f"request {name!r} holds {shown.get(name)}, by the answers"
                    f" {self.lists.get(name)}",
                )
        if Counter(snapshot.popped_blocks) != self.popped:
            raise violated(
                "answers_tell_the_state",
                "KV-POOL-16",
                f"popped are {list(snapshot.popped_blocks)}, by the answers"
                f" {sorted(self.popped.elements())}",
            )

    def _hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self.counts[block] += 1
                self._num_held += self.counts[block] == 1

    def _let_go(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self.counts[block] -= 1
                self._num_held -= self.counts[block] == 0
