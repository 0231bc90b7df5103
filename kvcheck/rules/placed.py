"""Caches in which some positions of one text are cached, the hit that they give; the need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import equal
from kvcheck.rules.managed import Managed
from kvspec.interface import Feature
from kvspec.request import Request
from kvspec.specs import LayerSpec

Positions = Sequence[Collection[int]]
"""Per group, places in its block list."""


def place(
    bench: Bench, specs: Sequence[LayerSpec], kept: Positions, **config: Any
) -> tuple[Managed, Request, list[list[int]]]:
    """A manager in which these positions of 60 tokens are cached and no others, and the lists."""
    manager = bench.manager(150, *specs, **config)
    request = manager.request("first", range(60))
    equal(manager.allocate_slots(request, 60) is not None, True)
    for group, positions in enumerate(kept):
        manager.keep_cached(request, positions, group)
        if bench.has(Feature.SNAPSHOT):
            found = manager.cached_positions(request, group)
            equal(found, sorted(positions), f"cached of {specs}, group {group}")
    return manager, request, manager.lists(request)


def hits(
    bench: Bench,
    specs: Sequence[LayerSpec],
    kept: Positions,
    length: int,
    answered: Positions,
    *,
    own: Sequence[int] | None = None,
    uncached: int | None = None,
    **config: Any,
) -> None:
    """With these positions cached, 59 of the 60 tokens hit so many by the blocks of those places.

    `own`: each group's own hit. `uncached`: the uncached common prefix.
    """
    manager, request, lists = place(bench, specs, kept, **config)
    what = f"of {kept} in {specs}, {config}"
    hit = manager.get_computed_blocks(request)
    equal(hit.hit_length_tokens, length, f"the hit {what}")
    expected = [
        [blocks[i] if i in places else 0 for i in range(length // spec.block_size)]
        for blocks, places, spec in zip(lists, answered, specs, strict=True)
    ]
    manager.same(hit.blocks, expected, f"blocks of the hit {what}")
    if uncached is not None:
        found = hit.uncached_common_prefix_tokens
        equal(found, uncached, f"uncached prefix {what}", rule="KV-COORD-12")
    if own is not None and bench.has(Feature.HITS_PER_GROUP):
        each = manager.find_longest_cache_hit_per_group(request, 59)
        equal(tuple(each.hit_lengths_tokens), tuple(own), f"own {what}", rule="KV-COORD-9")
        for blocks, spec, tokens in zip(each.blocks.groups, specs, own, strict=True):
            equal(len(blocks), tokens // spec.block_size, f"own blocks {what}")


def needs_capped(bench: Bench, spec: LayerSpec, *asked: tuple[int, int, int, int]) -> None:
    """With such a step and such a longest sequence so many tokens need so many blocks, capped."""
    for step, longest, tokens, need in asked:
        limits: dict[str, Any] = {"max_num_batched_tokens": step, "max_model_len_tokens": longest}
        manager = bench.manager(100, spec, **limits)
        request = manager.request("r", range(4))
        found = [manager.need(request, tokens, capped=capped) for capped in (True, False)]
        equal(found, [need, -(-tokens // spec.block_size)], f"{tokens} tokens, {spec}, {limits}")
