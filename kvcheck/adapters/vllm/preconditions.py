"""What vLLM's scheduler must keep for its manager to be right, checked call by call.

The manager cannot see these: it does as it is told. Each answers what is wrong in words, or None.
"""

from __future__ import annotations

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
    """External tokens go on where a hit of whole blocks ends."""
    hit = asked.num_new_computed_tokens
    if asked.num_external_computed_tokens and hit % scheduler_block_size:
        return f"a load behind a hit of {hit} tokens, no multiple of {scheduler_block_size}"
    return None


def lookahead_of_load(asked: Asked) -> str | None:
    """A load that is waited for takes no slots for drafts: the sender has none."""
    if asked.delays_caching and asked.num_lookahead_tokens:
        return f"{asked.num_lookahead_tokens} look-ahead slots for a load that is waited for"
    return None


def aligned_chunk(asked: Asked, block_size: int) -> str | None:
    """In mode align a prompt's chunk ends at a block, or reaches into the last one.

    A state is kept only at a chunk's end, so a chunk that ends elsewhere leaves none to be hit.
    """
    last = asked.num_tokens - asked.num_tokens % block_size
    start = asked.end - asked.num_new_tokens
    is_prefill = start < max(asked.num_prompt_tokens, asked.num_tokens - 1)
    if asked.num_new_tokens and is_prefill and asked.end < last and asked.end % block_size:
        return f"a chunk to token {asked.end}, inside a block of {block_size}, {last} are to come"
    return None


def verified_tokens(num_computed_tokens: int, num_tokens: int) -> str | None:
    """Tokens are cached once they are final: drafts that were rejected are taken off before."""
    if num_computed_tokens > num_tokens:
        return f"{num_computed_tokens} tokens to be cached, of which {num_tokens} are final"
    return None
