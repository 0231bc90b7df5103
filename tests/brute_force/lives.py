"""One stay of a request in the pool: what happened to it, and what its lists therefore hold.

An entry remembers the block that was put there and when. Whether it is still there follows from all
that happened since, and is worked out anew each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvspec.specs import CircularBufferSpec, LayerSpec
from tests.brute_force.by_token import blocks_of, holds_text, is_read, num_unread, tokens_of
from tests.brute_force.texts import Text


@dataclass(frozen=True)
class Span:
    """One group: its spec, the tokens that a block covers, its index."""

    spec: LayerSpec
    size: int
    index: int
    is_eagle: bool

    @property
    def has_text(self) -> bool:
        return holds_text(self.spec)

    @property
    def is_ring(self) -> bool:
        """Whether it is a single block from the first slots to the end (KV-CIRC-2)."""
        return isinstance(self.spec, CircularBufferSpec)

    @property
    def num_drafted(self) -> int:
        return self.spec.num_speculative_blocks

    @property
    def is_mamba(self) -> bool:
        return self.spec.is_state

    @property
    def is_aligned(self) -> bool:
        """Whether it holds states at boundaries and those of the last step only."""
        return self.spec.is_aligned


@dataclass(frozen=True)
class Wish:
    """The demand of an allocation, in tokens from the start of the text.

    `slots`: those that have slots afterwards; `main`: without lookahead. `at`: so many count as
    computed when windows are looked at. `loads`: brought from elsewhere, beyond `local`.
    """

    hits: Sequence[Sequence[int]]
    local: int
    loads: int
    at: int
    slots: int
    main: int
    encoder: int


@dataclass
class Entry:
    """One entry of a list: the block put there at this time, 0 for null."""

    block: int
    since: int
    is_moved: bool = False


@dataclass
class Life:
    """From the first slots of a request to its release, in the order of time.

    `removals`: when, and how many tokens counted as computed. `calls`: the tokens of each caching
    call, those that had names then, and how many of them were not taken back later. `begun`: per
    group, the entries that it began with, None if it took no hits or load.
    """

    text: Text
    spans: tuple[Span, ...]
    lists: list[list[Entry]]
    removals: list[tuple[int, int]] = field(default_factory=list)
    calls: list[tuple[int, range, float]] = field(default_factory=list)
    begun: list[int | None] = field(default_factory=list)
    has_taken: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, text: Text, spans: tuple[Span, ...]) -> Life:
        return cls(text, spans, [[] for _ in spans], begun=[None for _ in spans])

    def held(self, span: Span) -> list[int]:
        return [self.block(span, index) for index in range(len(self.lists[span.index]))]

    def block(self, span: Span, index: int) -> int:
        """Return an entry's block: null from the first removal that finds it unread (KV-GRP-2)."""
        entry = self.lists[span.index][index]
        if entry.is_moved or not span.has_text:
            return 0 if entry.is_moved else entry.block
        tokens = tokens_of(index, span.size)
        for when, computed in self.removals:
            sure = max(0, computed - span.num_drafted)  # KV-MAMBA-5
            if when > entry.since and not is_read(span.spec, tokens, sure):
                return 0
            if when > entry.since and span.spec.rswa_window:
                gap = range(self.text.num_prompt, computed - span.spec.rswa_window)
                if all(token in gap for token in tokens):  # KV-RSWA-1
                    return 0
        return entry.block

    @property
    def holds_something(self) -> bool:
        return any(self.lists)


def length_wanted(span: Span, slots: int, main: int, encoder: int) -> int:
    """Return the entries of a list with these slots (KV-GRP-7, KV-MAMBA-4, KV-MAMBA-6)."""
    if span.is_ring:
        return 1
    if not span.has_text:
        return blocks_of(encoder, span.size) if span.spec.kind == "cross_attention" else 0
    return blocks_of(main if span.is_aligned else slots, span.size) + span.num_drafted


def beginning(span: Span, wish: Wish) -> list[int]:
    if not span.has_text:
        return []
    unread = num_unread(span.spec, span.size, wish.at)
    return [0] * unread + list(wish.hits[span.index][unread:])


def num_loaded(span: Span, wish: Wish, length: int) -> int:
    """Count the blocks loaded by a connector behind `length` entries (KV-GRP-6)."""
    total = wish.local + wish.loads
    there = [range(token, token + 1) for token in range(total)]
    if wish.loads and span.is_ring:
        return len(range(length, 1))
    if not wish.loads or not span.has_text:
        return 0
    if not any(is_read(span.spec, token, wish.at) for token in there):
        return 0
    return len(range(length, blocks_of(total, span.size)))


@dataclass(frozen=True)
class Growth:
    """The entries added at the end of a list: nulls, drafted states to move, blocks."""

    nulls: int
    moved: tuple[int, ...]
    blocks: int


def growth(span: Span, length: int, wanted: int, *, has_taken: bool) -> Growth:
    """Grow a list from `length` to `wanted` entries.

    A list of mode align holds at most one running state and those of the drafts behind it: the
    entries between are null, and the blocks behind the old running state move to the new end.
    """
    if wanted <= length:
        return Growth(0, (), 0)
    if not span.is_aligned:
        return Growth(0, (), wanted - length)
    running = wanted - span.num_drafted - 1
    new = range(length, wanted)
    nulls = sum(1 for entry in new if entry < running)
    drafted = range(length - span.num_drafted, length) if has_taken else range(0)
    moved = tuple(entry for entry in drafted if entry < running)
    return Growth(nulls, moved, len(new) - nulls - len(moved))
