"""Preconditions that vLLM's scheduler must keep for its manager to be right, checked per call.

The manager cannot check these itself. Each function returns what is wrong in words, or None.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """The numbers of one `allocate_slots`."""

    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_new_tokens: int
    num_new_computed_tokens: int = 0
    num_external_computed_tokens: int = 0
    num_lookahead_tokens: int = 0
    delays_caching: bool = False

    @property
    def end(self) -> int:
        """The tokens that are computed once the step is."""
        start = self.num_computed_tokens + self.num_new_computed_tokens
        return start + self.num_external_computed_tokens + self.num_new_tokens


def load_behind_hit(asked: Asked, scheduler_block_size: int) -> str | None:
    """Check that external tokens continue where a hit of whole blocks ends."""
    hit = asked.num_new_computed_tokens
    if asked.num_external_computed_tokens and hit % scheduler_block_size:
        return f"a load behind a hit of {hit} tokens, no multiple of {scheduler_block_size}"
    return None


def lookahead_of_load(asked: Asked) -> str | None:
    """Check that a pending load takes no slots for drafts: the sender has none."""
    if asked.delays_caching and asked.num_lookahead_tokens:
        return f"{asked.num_lookahead_tokens} look-ahead slots for a load that is waited for"
    return None


def aligned_chunk(asked: Asked, block_size: int, stops: Collection[int] = ()) -> str | None:
    """Check that in mode align a prompt's chunk ends at a block, or reaches into the last one.

    A state is kept only at a chunk's end, so a chunk that ends elsewhere leaves none to be hit.
    `stops`: where else it may end, because a state is wanted there.
    """
    last = asked.num_tokens - asked.num_tokens % block_size
    start = asked.end - asked.num_new_tokens
    is_prefill = start < max(asked.num_prompt_tokens, asked.num_tokens - 1)
    is_inside = asked.end < last and asked.end % block_size and asked.end not in stops
    if asked.num_new_tokens and is_prefill and is_inside:
        return f"a chunk to token {asked.end}, inside a block of {block_size}, {last} are to come"
    return None


def realigned_chunk(asked: Asked, block_size: int) -> str | None:
    """Check that in mode align a chunk that begins inside a block ends within it.

    Otherwise the state of the block would be skipped, and the earlier one used in its place.
    """
    start = asked.end - asked.num_new_tokens
    is_prefill = start < max(asked.num_prompt_tokens, asked.num_tokens - 1)
    end_of_block = -(-start // block_size) * block_size
    if asked.num_new_tokens and is_prefill and start % block_size and asked.end > end_of_block:
        return f"a chunk from token {start} to {asked.end}, past the end of a block of {block_size}"
    return None


def known_behind_chunk(asked: Asked, num_read: int) -> str | None:
    """Check that `num_read` tokens after a chunk are known, unless it ends the prompt.

    A drafter of several modules reads them; otherwise its last module would keep state computed
    from guessed tokens.
    """
    left = asked.num_tokens - asked.end
    if asked.num_new_tokens and 0 < left < num_read:
        return f"a chunk that leaves {left} tokens, of which a drafter reads {num_read}"
    return None


def whole_blocks_offered(num_tokens: int, scheduler_block_size: int) -> str | None:
    """Check that a connector is offered whole blocks: otherwise its load would race with a copy."""
    if num_tokens % scheduler_block_size:
        return f"tokens behind {num_tokens}, no multiple of {scheduler_block_size}"
    return None


def verified_tokens(num_computed_tokens: int, num_tokens: int) -> str | None:
    """Check that only final tokens are cached, without rejected drafts."""
    if num_computed_tokens > num_tokens:
        return f"{num_computed_tokens} tokens to be cached, of which {num_tokens} are final"
    return None
