"""Block ids per group: the currency between a scheduler and a manager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvspec.errors import InvalidArgumentError

NULL_BLOCK = 0
"""The id of the null block: "not needed here" in a block list (KV-POOL-1)."""


@dataclass(frozen=True)
class BlockFacts:
    """The facts about one block (KV-POOL-20).

    `references`: 0 for a free block and for null. `block_hash`, `group`: of the first key under
    which it is cached; both None if it is not cached.
    """

    references: int
    block_hash: bytes | None
    group: int | None

    @property
    def is_cached(self) -> bool:
        """Whether a look-up may return it."""
        return self.block_hash is not None


@dataclass(frozen=True)
class KVCacheBlocks:
    """Block ids, one sequence per group, in token order.

    `groups[g][i]` holds tokens i*B … (i+1)*B - 1 of group g (B its block size); 0 is null.
    Implementations may use any `Sequence[int]`, e.g. an array; equality compares the ids.
    """

    groups: tuple[Sequence[int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Iterable):
            raise InvalidArgumentError("groups", self.groups, "one sequence of ids per group")
        try:
            groups = tuple(self.groups)
        except OverflowError:  # a range that is longer than any tuple
            raise InvalidArgumentError("groups", self.groups, "groups that fit in memory") from None
        object.__setattr__(self, "groups", groups)

    @classmethod
    def empty(cls, num_groups: int) -> KVCacheBlocks:
        """Return no blocks, for each of `num_groups` groups."""
        return cls(tuple(() for _ in range(num_groups)))

    @property
    def is_empty(self) -> bool:
        """True when no group has a block."""
        return all(len(ids) == 0 for ids in self.groups)

    def to_lists(self) -> list[list[int]]:
        """Return plain lists, for records and comparison."""
        return [[int(block) for block in ids] for ids in self.groups]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KVCacheBlocks):
            return NotImplemented
        return self.to_lists() == other.to_lists()

    def __hash__(self) -> int:
        return hash(tuple(tuple(ids) for ids in self.to_lists()))


@dataclass(frozen=True)
class PrefixHit:
    """The result of a look-up (KV-MGR-2).

    `hit_length_tokens` counts from the start of the request. `blocks` covers exactly that many
    tokens in every group (null where a block is not needed). `uncached_common_prefix_tokens` is how
    much longer the longest result of any single look-up was (several groups only; else None).
    """

    blocks: KVCacheBlocks
    hit_length_tokens: int
    uncached_common_prefix_tokens: int | None = None

    @property
    def junction_tokens(self) -> int:
        """End of that longer prefix; 0 if there is none (KV-RET-7)."""
        uncached = self.uncached_common_prefix_tokens
        return self.hit_length_tokens + uncached if uncached else 0


@dataclass(frozen=True)
class GroupHits:
    """Every group's own longest hit, not reconciled: its blocks and its length in tokens."""

    blocks: KVCacheBlocks
    hit_lengths_tokens: tuple[int, ...]
