"""Preconditions that vLLM's scheduler must keep for its manager to be right, checked per call.

The manager cannot check these itself. What is wrong is said in words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
    def start(self) -> int:
        hit = self.num_computed_tokens + self.num_new_computed_tokens
        return hit + self.num_external_computed_tokens

    @property
    def end(self) -> int:
        return self.start + self.num_new_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether it computes a chunk of a prompt, or of what is computed again."""
        last = max(self.num_prompt_tokens, self.num_tokens - 1)
        return self.num_new_tokens > 0 and self.start < last


def broken(asked: Asked, scheduler_block_size: int, num_read: int = 0) -> Iterator[str]:
    """Yield what any allocation breaks.

    External tokens continue where a hit of whole blocks ends. A pending load takes no slots for
    drafts: the sender has none. `num_read` tokens after a chunk are known, unless it ends the
    prompt: a drafter of several modules reads them, and its last module would keep state computed
    from guessed tokens.
    """
    hit, left = asked.num_new_computed_tokens, asked.num_tokens - asked.end
    if asked.num_external_computed_tokens and hit % scheduler_block_size:
        yield f"a load behind a hit of {hit} tokens, no multiple of {scheduler_block_size}"
    if asked.delays_caching and asked.num_lookahead_tokens:
        yield f"{asked.num_lookahead_tokens} look-ahead slots for a load that is waited for"
    if asked.num_new_tokens and 0 < left < num_read:
        yield f"a chunk that leaves {left} tokens, of which a drafter reads {num_read}"


def misaligned(asked: Asked, size: int, stops: Collection[int], *, later: bool) -> Iterator[str]:
    """Yield what a chunk of a prompt breaks for states in mode align, in blocks of `size`.

    It ends at a block, at one of `stops`, where a state is wanted, or reaches into the last block:
    a state is kept only at its end. In `later` versions one that begins inside a block ends within
    it: else the state of the block would be skipped, and the earlier one used in its place.
    """
    if not asked.is_prefill:
        return
    last = asked.num_tokens - asked.num_tokens % size
    if asked.end < last and asked.end % size and asked.end not in stops:
        yield f"a chunk to token {asked.end}, inside a block of {size}, {last} are to come"
    if later and asked.start % size and asked.end > -(-asked.start // size) * size:
        chunk = f"a chunk from token {asked.start} to {asked.end}"
        yield f"{chunk}, past the end of a block of {size}"
