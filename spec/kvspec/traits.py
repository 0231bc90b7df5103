"""Properties of specs that others read, so that they need not know a new type."""

from __future__ import annotations

from typing import ClassVar


class Traits:
    """Declared by each type of spec. A value that a type does not have is 0 or empty."""

    kind: ClassVar[str] = "custom"
    """The word that names the kind of spec in events."""

    prefix_cacheable: ClassVar[bool] = True
    """Whether groups take part in prefix caching (KV-COORD-14)."""

    is_full_attention: ClassVar[bool] = False
    """Whether hits are valid from the first block on, and end at the first miss (KV-FULL-2)."""

    keeps_all_blocks: ClassVar[bool] = False
    """Whether a request keeps each of its blocks until it is freed."""

    is_state: ClassVar[bool] = False
    """Whether a block holds a state, and not the slots of its tokens."""

    reads_encoder: ClassVar[bool] = False
    """Whether its tokens are those of the encoder."""

    is_ring: ClassVar[bool] = False
    """Whether a request writes its one block over and over."""

    needs_blocks: ClassVar[bool] = True
    """Whether a request has blocks at all."""

    is_latent: ClassVar[bool] = False
    """Whether a token has one latent vector in place of keys and values."""

    replays_window: ClassVar[bool] = False
    """Whether a request computes the window again behind a hit (KV-SW-10)."""

    retains_sparsely: ClassVar[bool] = False
    """Whether a retention interval has an effect (KV-CFG-7)."""

    @property
    def reads_whole_prefix(self) -> bool:
        """Whether each token reads all tokens before it."""
        return self.is_full_attention and self.keeps_all_blocks

    @property
    def has_slots(self) -> bool:
        """Whether each token of the sequence has a slot of a block (KV-BATCH-9)."""
        return self.needs_blocks and not (self.is_state or self.reads_encoder or self.is_ring)

    @property
    def window_tokens(self) -> int:
        """Number of last tokens that a token reads, itself included."""
        return 0

    @property
    def chunk_tokens(self) -> int:
        """Tokens per chunk; no token reads beyond its chunk."""
        return 0

    @property
    def extra_retained_tokens(self) -> int:
        """Tokens before the window whose blocks are kept as well (KV-SW-9)."""
        return 0

    @property
    def rswa_window(self) -> int:
        """Last tokens that a token after the prompt reads besides the prompt (KV-RSWA-1)."""
        return 0

    @property
    def num_sink_blocks(self) -> int:
        """Blocks set aside from the start (KV-FULL-8)."""
        return 0

    @property
    def is_aligned(self) -> bool:
        """Whether past states are kept at the ends of blocks (mode align)."""
        return False

    @property
    def num_speculative_blocks(self) -> int:
        """Further blocks for the states of drafted tokens."""
        return 0

    @property
    def checkpoint_step_tokens(self) -> int:
        """Tokens that divide the distance of a state inside a chunk from the chunk's start; 0 if a
        step leaves no state there (KV-INSIDE-5)."""
        return 0

    @property
    def has_checkpoints(self) -> bool:
        """Whether a step may leave a state inside its chunk."""
        return self.checkpoint_step_tokens > 0
