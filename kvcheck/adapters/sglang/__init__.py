"""SGLang's radix cache with the contract's calls, for level *safety*.

    kvspec check kvcheck.adapters.sglang:implementation --level safety

The design differs: a tree of token prefixes instead of a map of block hashes, slots instead of
blocks, locks on tree nodes instead of references to blocks. A page of the allocator is a block,
with the same number: page 0 is SGLang's dummy page, and the contract's null block. SGLang's own
functions do all that changes state; the adapter is the scheduler that calls them, in the order of
SGLang's. Translation of the calls:

- request: a `Req`; the salt is its `cache_salt`, an adapter's name and path its `lora_id`, a
  request that reads no cache one that wants logits from token 0 on.
- `get_computed_blocks`: `Req.init_next_round_input`, which keeps the hit on the request.
- first `allocate_slots`: `lock` of the matched node; room by `PrefillBudget`, else `unlock` and
  None; `alloc_for_extend`, `checkpoint_kv_cache`. Without a hit the match is forced to miss.
- later ones: the same for a chunk of the prompt; for a generated token `check_decode_capacity`,
  `alloc_for_decode`. Generated tokens enter the tree when the request is released.
- `free`: `release_kv_cache`, which publishes what was computed, and `reset_for_retract`. (SGLang's
  scheduler does not publish when it preempts; the contract has one call for both.)
- `num_free_blocks`: free slots and those of unlocked tree nodes.
- `reset_prefix_cache`: as `Scheduler.flush_cache`, if no request holds a row.

A checkpoint may replace the request's own page by the tree's page with the same content.
"""

from __future__ import annotations

from kvcheck.adapters.sglang.engine import SGLangUnavailableError
from kvcheck.adapters.sglang.implementation import SGLangImplementation

__all__ = [
    "SGLangImplementation",
    "SGLangUnavailableError",
    "implementation",
    "plain_radix_cache",
    "python_core",
]


def implementation() -> SGLangImplementation:
    """Return SGLang's manager as a server builds it: `UnifiedRadixCache`.

    Raises SGLangUnavailableError when SGLang, or what it imports, is missing.
    """
    return SGLangImplementation("rust")


def python_core() -> SGLangImplementation:
    """Return the same with its tree in Python instead of Rust."""
    return SGLangImplementation("python")


def plain_radix_cache() -> SGLangImplementation:
    """Return the older `RadixCache`, which SGLang's tests and simulations still use."""
    return SGLangImplementation("plain")
