"""Shadow memory: what every slot holds, as the caller wrote it.

The identity of a token is the whole prefix that ends with it. Writing identities at the slots an
implementation hands out, and reading them back at every hit, shows whether content is where the
implementation says: no slot in use overwritten, no hit on something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kvspec.blocks import NULL_BLOCK
from kvspec.errors import InvariantViolation

Identity: TypeAlias = "tuple[object, ...]"


class ShadowMemory:
    """One identity per (block, offset) of a group."""

    def __init__(self, block_size_tokens: int) -> None:
        self.block_size = block_size_tokens
        self.slots: dict[tuple[int, int], Identity] = {}

    def write(self, blocks: Sequence[int], position: int, identity: Identity) -> None:
        """The token at `position` of the list `blocks` was computed."""
        block, offset = blocks[position // self.block_size], position % self.block_size
        if block == NULL_BLOCK:
            raise InvariantViolation(
                "no_write_to_null",
                "KV-POOL-1",
                f"token {position} must be written to the null block",
            )
        self.slots[block, offset] = identity

    def expect(
        self, blocks: Sequence[int], identities: Sequence[Identity], what: str, rule: str
    ) -> None:
        """The first tokens of `blocks` hold exactly `identities`; null blocks are not read."""
        for position, identity in enumerate(identities):
            block, offset = blocks[position // self.block_size], position % self.block_size
            if block != NULL_BLOCK and self.slots.get((block, offset)) != identity:
                raise InvariantViolation(
                    "content_is_where_it_is_claimed",
                    rule,
                    f"{what}: token {position} should be in slot {offset} of block {block},"
                    f" which holds {self.slots.get((block, offset), 'nothing')}",
                )
