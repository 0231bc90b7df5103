"""The caches on which contents are checked: kinds of layers, formats, sizes of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvfast.device.layout import Layout
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.device.models import BLOCK_SIZE, full, mamba, mla, window

ALIGNED = replace(mamba(), mamba_cache_mode="align")
"""States of 12 and 20 bytes in a page of 144."""
MOVED = replace(ALIGNED, num_speculative_blocks=1)
"""The same with a block for a draft, so that blocks move within lists (KV-MAMBA-9)."""


@dataclass(frozen=True)
class Case:
    """Groups of two layers each.

    `hash_block_size`: less than the blocks', so that these can be taken over in part.
    """

    name: str
    specs: tuple[LayerSpec, ...]
    layout: Layout = "NHD"
    hash_block_size: int | None = None

    def has(self, kind: type[LayerSpec]) -> bool:
        """Whether there is a group of this kind."""
        return any(isinstance(spec, kind) for spec in self.specs)

    @property
    def can_draft(self) -> bool:
        """Chunks rule drafts out; states after drafts would need blocks of their own."""
        return not self.has(MambaSpec) and not self.has(ChunkedLocalAttentionSpec)

    @property
    def can_have_tier(self) -> bool:
        """The host tier has full attention and windows only (KV-TIER-8)."""
        return self.can_draft


def first_read(spec: LayerSpec, num_computed: int) -> int:
    """The first token that token number `num_computed` reads in an attention group."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, num_computed - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return num_computed // spec.attention_chunk_size * spec.attention_chunk_size
    return 0


CASES: tuple[Case, ...] = (
    Case("full, float16", (full(),)),
    Case("full and window", (full(), window()), "HND"),
    Case("full, window and Mamba", (full(), window(), ALIGNED)),
    Case("parts of blocks", (full(), window()), hash_block_size=2),
    Case("MLA, bfloat16", (mla(),)),
    Case("full, int8 with scales", (full("int8", "INT8_PER_TOKEN_HEAD"),), "HND"),
    Case("full and Mamba", (full(), MOVED), "HND"),
    Case("full, float8 with scales", (full("float8_e4m3fn", "FP8_PER_TOKEN_HEAD"),)),
    Case(
        "blocks of unequal size",
        (FullAttentionSpec(2 * BLOCK_SIZE, 1, 6, "float16", head_size_v=3), window()),
    ),
    Case("full, float8", (full("float8_e4m3fn"),), "HND"),
    Case("window, float16", (replace(window(), sliding_window=9),)),
    Case(
        "full and chunks, bfloat16",
        (
            FullAttentionSpec(BLOCK_SIZE, 2, 6, "bfloat16"),
            ChunkedLocalAttentionSpec(BLOCK_SIZE, 2, 6, "bfloat16", attention_chunk_size=8),
        ),
    ),
    Case("full, float32", (full("float32"),)),
)
