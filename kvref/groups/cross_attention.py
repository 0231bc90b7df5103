"""Groups that hold no tokens of the sequence: cross attention, encoder-only (KV-CROSS-*)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.groups.base import Demand, Group, cdiv


class CrossAttentionGroup(Group):
    """One static allocation for the encoder's tokens; never cached, never hit."""

    covers_sequence = False

    def num_tokens_held(self, demand: Demand) -> int:
        """Return the encoder's tokens, which need slots (KV-CROSS-1)."""
        return demand.num_encoder_tokens

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Return the number of missing blocks for the encoder's tokens (KV-CROSS-1)."""
        required = cdiv(self.num_tokens_held(demand), self.block_size)
        return max(required - len(self.blocks_of(request_id)), 0)

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        """Take nothing: there are no hits, no nulls and no entry (KV-CROSS-2)."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        """Take nothing: external tokens need no blocks here (KV-CROSS-2)."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Take all blocks in the first allocation; later ones add none (KV-CROSS-2)."""
        return self.extend(request_id, cdiv(self.num_tokens_held(demand), self.block_size))


class EncoderOnlyGroup(CrossAttentionGroup):
    """Keeps nothing, so needs no block (KV-CROSS-5)."""

    def num_tokens_held(self, demand: Demand) -> int:
        return 0
