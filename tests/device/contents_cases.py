"""The caches on which contents are checked: kinds of layers, formats, sizes of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvfast.device import Layout
from kvfast.device.base.layout import page_size_bytes
from kvspec.config import KVCacheConfig, KVCacheTensor, ManagerConfig
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
)
from tests.device.models import BLOCK_SIZE, cache, full, mamba, mla, window

ALIGNED = replace(mamba(), mamba_cache_mode="align")
"""States of 12 and 20 bytes in a page of 144."""
MOVED = replace(ALIGNED, num_speculative_blocks=1)
"""The same with a block for a draft, so that blocks move within lists (KV-MAMBA-9)."""
ALL = replace(mamba(), mamba_cache_mode="all")
"""With the state after every block, also those that a step passes."""
DRAFTED = replace(ALL, num_speculative_blocks=2)
"""The same with blocks for the states after two drafts."""
PACKED_GAP_BYTES = 8
"""Behind the pages of a packed block, so that no page begins where the one before it ends."""


@dataclass(frozen=True)
class Case:
    """Groups of two layers each.

    - `hash_block_size`: less than the blocks', so that these can be taken over in part.
    - `packed`: pages of a block side by side in one allocation (KV-PLAN-14).
    - `dcp`, `pcp`: world sizes of context parallelism; the pools are those of one rank.
    """

    name: str
    specs: tuple[LayerSpec, ...]
    layout: Layout = "NHD"
    hash_block_size: int | None = None
    packed: bool = False
    dcp: int = 1
    pcp: int = 1

    def config(self, num_blocks: int, longest: int) -> ManagerConfig:
        made = cache(*self.specs, num_blocks=num_blocks)
        return ManagerConfig(
            packed(made) if self.packed else made,
            longest,
            hash_block_size_tokens=self.hash_block_size,
            hash_seed="0",
            dcp_world_size=self.dcp,
            pcp_world_size=self.pcp,
        )

    @property
    def world_size(self) -> int:
        return self.dcp * self.pcp

    def span(self, group: int) -> int:
        """Return the tokens that a block of a group covers (KV-FULL-5)."""
        return self.specs[group].block_size * self.world_size

    def has(self, kind: type[LayerSpec]) -> bool:
        return any(isinstance(spec, kind) for spec in self.specs)

    @property
    def can_draft(self) -> bool:
        """Chunks rule drafts out; in mode all they have blocks for their states (KV-MAMBA-4)."""
        return self.max_drafts > 0

    @property
    def max_drafts(self) -> int:
        if self.has(ChunkedLocalAttentionSpec):
            return 0
        return min(
            (
                spec.num_speculative_blocks if spec.mamba_cache_mode == "all" else 0
                for spec in self.specs
                if isinstance(spec, MambaSpec)
            ),
            default=3,
        )

    @property
    def can_have_tier(self) -> bool:
        """Whether the host tier allows it: full attention and windows only (KV-TIER-8)."""
        return self.can_draft and self.world_size == 1 and not self.has(MambaSpec)


def packed(config: KVCacheConfig) -> KVCacheConfig:
    rows = list(zip(*(group.layer_names for group in config.groups), strict=True))
    page = page_size_bytes(config.groups[0].spec)
    stride = page * len(rows) + PACKED_GAP_BYTES
    tensors = (
        KVCacheTensor(stride * config.num_blocks, names, number * page, stride)
        for number, names in enumerate(rows)
    )
    return replace(config, tensors=tuple(tensors))


def first_read(spec: LayerSpec, num_computed: int) -> int:
    """Return the first token that token number `num_computed` reads in an attention group."""
    if spec.window_tokens:
        return max(0, num_computed - spec.window_tokens + 1)
    if spec.chunk_tokens:
        return num_computed // spec.chunk_tokens * spec.chunk_tokens
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
"""Kinds of layers, formats and sizes."""

ARRANGED: tuple[Case, ...] = (
    Case("full and window, packed", (full(), window()), packed=True),
    Case("full and Mamba in mode all, packed", (full(), ALL), "HND", packed=True),
    Case("full and Mamba in mode all, drafts", (full(), DRAFTED)),
    Case("full, three ranks", (replace(full(), block_size=2),), "HND", dcp=3),
    Case("MLA, four ranks", (replace(mla("float16"), block_size=2),), dcp=2, pcp=2),
)
"""Where pages lie, where states are kept, and which tokens a rank has."""
