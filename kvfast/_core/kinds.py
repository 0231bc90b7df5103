"""The kinds of groups, and what follows from the kind alone.

Whatever branches by kind handles each one and ends in `never`: mypy then reports a kind that was
forgotten. Compiled, the same numbers are constants of `_compiled/kind_fields.pxd`.
"""

from __future__ import annotations

from typing import Final, Literal, Never, TypeAlias

Kind: TypeAlias = Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

FULL: Final = 0
"""Attention over everything."""
SLIDING: Final = 1
"""A sliding window."""
CHUNKED: Final = 2
"""Chunked local attention."""
MAMBA: Final = 3
"""States."""
ALIGNED: Final = 4
"""States in mode align."""
CROSS: Final = 5
"""Tokens of an encoder."""
ENCODER_ONLY: Final = 6
"""Nothing that is kept."""
CIRCULAR: Final = 7
"""One block per request, written over and over."""
RSWA: Final = 8
"""The prompt, and a window after it."""
REPLAYED: Final = 9
"""A sliding window that is not cached, but computed again behind a hit."""

HOLDS_TOKENS: Final = frozenset({FULL, RSWA, SLIDING, CHUNKED, MAMBA, ALIGNED, REPLAYED})
"""Whose blocks hold all of the sequence's own tokens, not those of an encoder."""
CACHED: Final = HOLDS_TOKENS - {REPLAYED}
"""Whose groups take part in prefix caching (KV-COORD-14)."""


def never(kind: Never) -> int:
    """Mark the end of a branch by kind, which no kind reaches."""
    return 0


def first_visible(kind: Kind, reach: int, computed: int) -> int:
    """Return the first token that token `computed`, or any after it, attends to (KV-GRP-2).

    `reach`: the length of the window or chunk.
    """
    if kind == FULL or kind == RSWA or kind == CROSS or kind == ENCODER_ONLY or kind == CIRCULAR:
        return 0
    if kind == SLIDING or kind == REPLAYED:
        return max(computed - reach + 1, 0)
    if kind == CHUNKED:
        return computed - computed % reach
    if kind == MAMBA or kind == ALIGNED:
        return max(computed - 1, 0)
    return never(kind)
