"""Mistakes planted in the running offload managers of an installed vLLM 0.33.0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kvcheck.adapters.vllm.offload import VLLMOffload
from kvcheck.mistakes import Mistake
from kvspec.offload import OffloadConfig, OffloadManager


class Planted(VLLMOffload):
    """vLLM's managers, each changed by `plant` when it is made."""

    def __init__(self, plant: Callable[[Any], None]) -> None:
        super().__init__("lru")
        self.plant = plant

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        made = super().make_offload(config)
        self.plant(made)
        return made


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let `owner.name(…)` be `change(right, …)`."""
    right = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: change(right, *args, **named))


def ready_at_once(made: Any) -> None:
    results = made.library.base.LookupResult

    def lookup(right: Any, *args: Any) -> Any:
        found = right(*args)
        return results.HIT if found == results.HIT_PENDING else found

    around(made.inner, "lookup", lookup)


def pins_once(made: Any) -> None:
    def load(right: Any, keys: Any, *args: Any, **named: Any) -> Any:
        spec = right(keys, *args, **named)
        for key in keys:
            made.cpu._policy.get(key).ref_cnt = 1
        return spec

    around(made.cpu, "_prepare_load", load)


def places_ascend(made: Any) -> None:
    def load(right: Any, *args: Any, **named: Any) -> Any:
        spec = right(*args, **named)
        spec.block_ids.sort()
        return spec

    around(made.inner, "prepare_load", load)


def place_plus(number: int) -> Callable[[Any], None]:
    """Number places from `number`, or give all chunks of a store the first place (0)."""

    def plant(made: Any) -> None:
        def store(right: Any, *args: Any) -> Any:
            out = right(*args)
            if out is not None and len(out.keys_to_store):
                ids = out.store_spec.block_ids
                ids[:] = [each + number for each in ids] if number else [ids[0]] * len(ids)
            return out

        around(made.inner, "prepare_store", store)

    return plant


def evicts_its_own(made: Any) -> None:
    around(made.cpu._policy, "evict", lambda right, number, kept: right(number, set()))


def evicts_one_more(made: Any) -> None:
    around(
        made.cpu._policy,
        "evict",
        lambda right, n, kept: right(n + 1, kept) or right(n, kept),
    )


def failures_are_ready(made: Any) -> None:
    def complete(right: Any, keys: Any, context: Any, success: bool = True) -> None:
        right(keys, context)

    around(made.inner, "complete_store", complete)


def last_stays_pending(made: Any) -> None:
    def complete(right: Any, keys: Any, *args: Any) -> None:
        right(keys[:-1] or keys, *args)

    around(made.inner, "complete_store", complete)


def without_events(*, removed: bool) -> Callable[[Any], None]:
    """Leave out the events of removals, or of stores."""

    def plant(made: Any) -> None:
        def take(right: Any) -> list[Any]:
            return [each for each in right() if each.removed != removed or each.metadata_only]

        around(made.inner, "take_events", take)

    return plant


def reset_keeps_numbers(made: Any) -> None:
    def reset(right: Any) -> None:
        number = made.cpu._num_allocated_chunks
        right()
        made.cpu._num_allocated_chunks = number

    around(made.cpu, "reset_cache", reset)


def failed_stay_counted(made: Any) -> None:
    def complete(right: Any, keys: Any, context: Any, success: bool = True) -> None:
        right(keys, context, success)
        made.cpu._num_write_pending_chunks += not success

    around(made.cpu, "complete_store", complete)


def one_offer_more(made: Any) -> None:
    if made.cpu.store_threshold > 1:
        made.cpu.store_threshold += 1


def first_tier_alone(made: Any) -> None:
    for tier in getattr(made, "tiers", [])[1:]:
        around(tier, "submit_store", lambda right, job: None)


def loads_twice(made: Any) -> None:
    for tier in getattr(made, "tiers", []):

        def load(right: Any, job: Any) -> None:
            right(job)
            right(job)

        around(tier, "submit_load", load)


def never_unpins(made: Any) -> None:
    def complete(right: Any, keys: Any, *args: Any) -> None:
        right(keys[1:], *args)

    around(made.inner, "complete_load", complete)


def places_leak(made: Any) -> None:
    around(made.cpu, "_free_chunk", lambda right, chunk: right(chunk) if chunk.chunk_id else None)


_PLANTED: Mapping[str, tuple[Callable[[Any], None], str]] = {
    "a pending chunk is a hit": (ready_at_once, "KV-TIER-9"),
    "the places of a load ascend": (places_ascend, "KV-TIER-10"),
    "a chunk is pinned once": (pins_once, "KV-TIER-11"),
    "the first chunk of a load stays pinned": (never_unpins, "KV-TIER-11"),
    "places are numbered from 1": (place_plus(1), "KV-TIER-12"),
    "all chunks of a store get one place": (place_plus(0), "KV-TIER-12"),
    "a chunk that the store names is evicted": (evicts_its_own, "KV-TIER-13"),
    "one chunk too many is evicted": (evicts_one_more, "KV-TIER-13"),
    "a failed store is ready": (failures_are_ready, "KV-TIER-14"),
    "the last chunk of a store stays pending": (last_stays_pending, "KV-TIER-14"),
    "a failed store stays counted": (failed_stay_counted, "KV-TIER-15"),
    "place 0 is never free again": (places_leak, "KV-TIER-15"),
    "evictions have no events": (without_events(removed=True), "KV-TIER-17"),
    "stores have no events": (without_events(removed=False), "KV-TIER-17"),
    "a reset forgets no places": (reset_keeps_numbers, "KV-TIER-18"),
    "only the first lower tier gets copies": (first_tier_alone, "KV-TIER-19"),
    "a promotion begins twice": (loads_twice, "KV-TIER-20"),
    "a key is stored one offer too late": (one_offer_more, "KV-TIER-25"),
}
"""What is wrong: the change, and the rule that it breaks."""

IN_VLLM = tuple(
    Mistake(f"InVLLM{number}", (rule,), what, "vllm", "tier", partial(Planted, plant))
    for number, (what, (plant, rule)) in enumerate(_PLANTED.items())
)
