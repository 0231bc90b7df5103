"""nano-vllm's block manager with the contract's calls, for level *safety*.

    kvspec check kvcheck.adapters.nanovllm:implementation --level safety

The factory takes whatever `nanovllm` is on the path; it needs numpy and xxhash, and no GPU.
Translation of the calls:

- block id: nano-vllm's + 1; id 0 is the null block, which it does not have.
- request: a `Sequence`, with the block size of its manager.
- `get_computed_blocks`: `can_allocate`. It returns the length of the hit, or that the request does
  not fit; then the hit is empty. The blocks are read from `hash_to_block_id`.
- first `allocate_slots`: `allocate`, which takes blocks for the whole prompt at once, also if only
  a chunk is computed. Without a hit its length is 0, if that many blocks are free.
- later ones: nothing in prefill; `can_append` and `may_append` for a generated token.
- after each grant `hash_blocks`, since the tokens of a granted step count as computed. With caching
  off it is not called: nano-vllm has no such switch.
- `free`: `deallocate`, for a finished request as for a preempted one.
"""

from __future__ import annotations

from kvcheck.adapters.nanovllm.implementation import NanoImplementation
from kvcheck.adapters.nanovllm.library import NanoUnavailableError, load_library

__all__ = ["NanoImplementation", "NanoUnavailableError", "implementation"]


def implementation() -> NanoImplementation:
    """Return nano-vllm's manager. Raise NanoUnavailableError if it cannot be imported."""
    return NanoImplementation(load_library())
