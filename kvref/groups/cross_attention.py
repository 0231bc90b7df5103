"""Groups that hold no tokens of the sequence: cross attention, encoder-only (KV-CROSS-*)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.groups.base import Demand, Group, cdiv


class CrossAttentionGroup(Group):
    """One static allocation for the encoder's tokens; never cached, never hit."""

    covers_sequence = False

    def num_tokens_held(self, demand: Demand) -> int:
        """Tokens that need slots: the encoder's (KV-CROSS-1)."""
        return demand.num_encoder_tokens

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """What is missing for the encoder's tokens (KV-CROSS-1)."""
        required = cdiv(self.num_tokens_held(demand), self.block_size)
        return max(required - len(self.blocks_of(request_id)), 0)

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        """No hits, no nulls, no entry (KV-CROSS-2)."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        """No external blocks (KV-CROSS-2)."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """The one allocation; later calls find everything there (KV-CROSS-2)."""
        return self.extend(request_id, cdiv(self.num_tokens_held(demand), self.block_size))


class EncoderOnlyGroup(CrossAttentionGroup):
    """Keeps nothing, so needs no block (KV-CROSS-5)."""

    def num_tokens_held(self, demand: Demand) -> int:
        """None."""
        return 0
