"""The abstract state that every implementation can show.

A snapshot holds facts only, each once: those that determine every later result, independent of how
an implementation stores them. Queued events and statistics are not part of it: separate calls drain
them, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MambaState:
    """The state that an align-mode Mamba group keeps of a request besides its blocks.

    `has_allocated`: it has taken new blocks before (KV-MAMBA-9).
    """

    has_allocated: bool


@dataclass(frozen=True)
class RequestState:
    """A request's bookkeeping, per group.

    `block_ids[g]`: its block list (0 is null). `num_cached_blocks[g]`: leading blocks already
    handed to the cache, or None when group g has no entry for it. `mamba[g]`: only for align-mode
    Mamba groups, else None.
    """

    block_ids: tuple[tuple[int, ...], ...]
    num_cached_blocks: tuple[int | None, ...]
    mamba: tuple[MambaState | None, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The whole state of a manager between two calls.

    - `free_queue`: free block ids, front (next to be taken) to back.
    - `ref_counts[b]`: references to block b; entry 0 is always 0 (the null block has no count).
    - `block_keys[b]`: keys under which block b is cached, the primary key first. A key is the
      block hash followed by the group as 4 big-endian bytes (KV-HASH-6).
    - `lookup_order`: for each key, the blocks that carry it, in the order in which look-ups return
      them.
    - `covered_tokens[b]`: tokens, from the start of the request, that the primary key of block b
      covers; 0 without a key.
    - `none_hash`: the parent of first blocks.
    - `requests`: every request with at least one block or one cached-count entry.
    - `popped_blocks`: blocks popped by `pop_blocks_for_free` and not yet returned, ascending, one
      entry per reference, without null blocks.
    - `new_block_ids[g]`: ids queued for zeroing.
    - `step_keys[g]`: keys registered since the last `new_step_starts` (Mamba groups; else empty).
    - `reserved_blocks`: blocks reserved at start (attention sinks), ascending.
    - `pending_copies[g]`: (source, destination) of requested copies not yet taken; each end has a
      reference for it (KV-INSIDE-4). Empty where no group has any.
    - `written_from`: of blocks that the step being planned writes, the tokens that were there
      before; only of full attention where hits end inside a block (KV-INSIDE-17).
    - `ranks[b]`: rank of block b in the order of eviction, 0 without a key; empty with LRU
      (KV-ORD-1).
    """

    num_blocks: int
    free_queue: tuple[int, ...]
    ref_counts: tuple[int, ...]
    block_keys: tuple[tuple[bytes, ...], ...]
    lookup_order: Mapping[bytes, tuple[int, ...]]
    covered_tokens: tuple[int, ...]
    none_hash: bytes
    requests: Mapping[str, RequestState]
    popped_blocks: tuple[int, ...] = ()
    new_block_ids: tuple[tuple[int, ...], ...] = ()
    step_keys: tuple[frozenset[bytes], ...] = ()
    reserved_blocks: tuple[int, ...] = field(default=())
    pending_copies: tuple[tuple[tuple[int, int], ...], ...] = ()
    written_from: Mapping[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()

    def describe(self) -> str:
        """Return a readable dump, for error messages and diffs."""
        lines = [f"free queue : {_shorten(self.free_queue)}"]
        in_use = {b: count for b, count in enumerate(self.ref_counts) if count}
        lines.append(f"references : {_shorten(in_use)}")
        keys = {b: [k.hex()[:8] for k in ks] for b, ks in enumerate(self.block_keys) if ks}
        lines.append(f"cached keys: {_shorten(keys)}")
        for name, state in self.requests.items():
            lines.append(
                f"request {name!r}: blocks {_shorten(state.block_ids)},"
                f" cached {state.num_cached_blocks}"
            )
        if self.popped_blocks:
            lines.append(f"popped     : {_shorten(self.popped_blocks)}")
        if any(self.pending_copies):
            lines.append(f"copies     : {_shorten(self.pending_copies)}")
        if self.written_from:
            lines.append(f"written    : {_shorten(dict(self.written_from))}")
        if any(self.ranks):
            lines.append(f"ranks      : {_shorten(self.ranks)}")
        return "\n".join(lines)


def _shorten(value: object, limit: int = 400) -> str:
    """Return `repr`, cut where it would fill a screen."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text)} characters)"
