"""Mistakes planted in the running offload managers of an installed vLLM 0.33.0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from kvcheck.adapters.vllm.offload import VLLMOffload
from kvcheck.mistakes import Mistake
from kvspec.offload import OffloadConfig, OffloadManager

Change: TypeAlias = tuple[str, str, Callable[..., Any]]
"""A part of the adapter, a method of it, and a function of the right method and its arguments."""


class Planted(VLLMOffload):
    """vLLM's managers with a method changed; part `tiers` is each lower one, `tiers[1:]` not the
    first."""

    def __init__(self, change: Change) -> None:
        super().__init__("lru")
        self.change = change

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        made = super().make_offload(config)
        part, name, wrong = self.change
        among = getattr(made, "tiers", []) if part.startswith("tiers") else [attrgetter(part)(made)]
        for owner in among[1:] if part == "tiers[1:]" else among:
            setattr(owner, name, partial(wrong, getattr(owner, name)))
        return made


def ready_at_once(right: Any, *args: Any) -> Any:
    found = right(*args)
    return type(found).HIT if found.name == "HIT_PENDING" else found


def pinned_once(right: Any, keys: Any, *args: Any, **named: Any) -> Any:
    spec = right(keys, *args, **named)
    for key in keys:
        right.__self__._policy.get(key).ref_cnt = 1
    return spec


def ascending(right: Any, *args: Any, **named: Any) -> Any:
    spec = right(*args, **named)
    spec.block_ids.sort()
    return spec


def placed(place: Callable[[Any, int], int], right: Any, *args: Any) -> Any:
    """Store each chunk at a place by the place of the first and its own."""
    out = right(*args)
    if out is not None and len(out.keys_to_store):
        ids = out.store_spec.block_ids
        ids[:] = [place(ids[0], each) for each in ids]
    return out


def reset_but_numbers(right: Any) -> None:
    number = right.__self__._num_allocated_chunks
    right()
    right.__self__._num_allocated_chunks = number


def counted_for_ever(right: Any, keys: Any, context: Any, success: bool = True) -> None:
    right(keys, context, success)
    right.__self__._num_write_pending_chunks += not success


def without_events(*, removed: bool) -> Callable[[Any], Any]:
    return lambda right: [e for e in right() if e.removed != removed or e.metadata_only]


def twice(right: Any, job: Any) -> None:
    right(job)
    right(job)


def one_offer_more(right: Any, keys: Any, context: Any) -> Any:
    cpu = right.__self__
    if cpu.store_threshold == 2:
        cpu.store_threshold = 3
    return right(keys, context)


_PLANTED: Mapping[str, tuple[str, Change]] = {
    "a pending chunk is a hit": ("KV-TIER-9", ("inner", "lookup", ready_at_once)),
    "the places of a load ascend": ("KV-TIER-10", ("inner", "prepare_load", ascending)),
    "a chunk is pinned once": ("KV-TIER-11", ("cpu", "_prepare_load", pinned_once)),
    "the first chunk of a load stays pinned": (
        "KV-TIER-11",
        ("inner", "complete_load", lambda right, keys, *args: right(keys[1:], *args)),
    ),
    "places are numbered from 1": (
        "KV-TIER-12",
        ("inner", "prepare_store", partial(placed, lambda first, own: own + 1)),
    ),
    "all chunks of a store get one place": (
        "KV-TIER-12",
        ("inner", "prepare_store", partial(placed, lambda first, own: first)),
    ),
    "a chunk that the store names is evicted": (
        "KV-TIER-13",
        ("cpu._policy", "evict", lambda right, number, kept: right(number, set())),
    ),
    "one chunk too many is evicted": (
        "KV-TIER-13",
        ("cpu._policy", "evict", lambda right, n, kept: right(n + 1, kept) or right(n, kept)),
    ),
    "a failed store is ready": (
        "KV-TIER-14",
        ("inner", "complete_store", lambda right, keys, context, *_: right(keys, context)),
    ),
    "the last chunk of a store stays pending": (
        "KV-TIER-14",
        ("inner", "complete_store", lambda right, keys, *args: right(keys[:-1] or keys, *args)),
    ),
    "a failed store stays counted": ("KV-TIER-15", ("cpu", "complete_store", counted_for_ever)),
    "place 0 is never free again": (
        "KV-TIER-15",
        ("cpu", "_free_chunk", lambda right, chunk: right(chunk) if chunk.chunk_id else None),
    ),
    "evictions have no events": (
        "KV-TIER-17",
        ("inner", "take_events", without_events(removed=True)),
    ),
    "stores have no events": (
        "KV-TIER-17",
        ("inner", "take_events", without_events(removed=False)),
    ),
    "a reset forgets no places": ("KV-TIER-18", ("cpu", "reset_cache", reset_but_numbers)),
    "only the first lower tier gets copies": (
        "KV-TIER-19",
        ("tiers[1:]", "submit_store", lambda right, job: None),
    ),
    "a promotion begins twice": ("KV-TIER-20", ("tiers", "submit_load", twice)),
    "a key is stored one offer too late": ("KV-TIER-25", ("cpu", "prepare_store", one_offer_more)),
}
"""What is wrong: the rule that it breaks, and the change."""

IN_VLLM = tuple(
    Mistake(f"InVLLM{number}", (rule,), what, "vllm", "tier", partial(Planted, change))
    for number, (what, (rule, change)) in enumerate(_PLANTED.items())
)
