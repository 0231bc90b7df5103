"""The chapter on coordination (KV-COORD): own hits, the end of a search, what is cached."""

from __future__ import annotations

from functools import partial
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.coordination import FULL, KINDS, PLACES, SHORT, STATES
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.placed import hits, place
from kvcheck.rules.specs import full, sliding
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import UnsupportedError
from kvspec.events import AllBlocksCleared
from kvspec.interface import Feature


@example("KV-COORD-9")
def every_group_tells_its_own_hit(bench: Bench) -> None:
    """Every group tells its own hit up to a limit; flagged, it drops its own block."""
    manager, request, _ = place(bench, KINDS, PLACES)
    for limit, lengths in ((59, (56, 48, 56)), (47, (40, 32, 40))):
        found = manager.find_longest_cache_hit_per_group(request, limit)
        equal(tuple(found.hit_lengths_tokens), lengths, f"own hits of {limit}")
    flagged = (PLACES[0], (*PLACES[1], 9), PLACES[2])
    manager, request, _ = place(bench, KINDS, flagged, use_eagle=True)
    found = manager.find_longest_cache_hit_per_group(request, 59)
    equal(tuple(found.hit_lengths_tokens), (48, 24, 56))


@example("KV-COORD-9", "KV-STAT-1")
def a_look_up_per_group_ends_with_the_request_and_is_not_counted(bench: Bench) -> None:
    manager = bench.manager(40, FULL, SHORT, log_stats=True)
    request = manager.started("r", range(16))
    manager.make_prefix_cache_stats()
    for limit in (16, 17, 1000):
        found = manager.find_longest_cache_hit_per_group(request, limit)
        equal(tuple(found.hit_lengths_tokens), (16, 16), f"own hits of {limit}")
    stats = manager.make_prefix_cache_stats()
    equal(getattr(stats, "requests", None), 0)


@example("KV-COORD-9")
def a_look_up_per_group_needs_several_groups_that_are_cached(bench: Bench) -> None:
    for specs, caching in (((FULL,), True), ((FULL, SHORT), False)):
        manager = bench.manager(20, *specs, enable_caching=caching)
        ask = partial(manager.find_longest_cache_hit_per_group, manager.request("r", (1, 2)))
        with raises(UnsupportedError):
            ask(2)


@example("KV-COORD-10")
def two_groups_without_full_attention_need_rounds(bench: Bench) -> None:
    """Two groups without full attention need rounds: 40, 36, then 24, where both agree."""
    kept, answered = [(3, 4, 5, 6, 8, 9), (3, 5, 8)], [{4, 5}, {5}]
    hits(bench, [SHORT, STATES], kept, 24, answered)


@example("KV-COORD-10", "KV-COORD-11")
def full_attention_and_one_other_need_one_round(bench: Bench) -> None:
    """Full attention and one other need one round, even if another would shorten the hit."""
    hits(bench, [FULL, SHORT], [range(14), range(2, 6)], 24, [range(6), {4, 5}])
    one = [FULL, sliding(4, 1)]
    hits(bench, one, [range(14), {5}], 20, [range(5), ()], eagle_groups=[1])


@example("KV-COORD-11")
def every_list_of_full_attention_is_cut(bench: Bench) -> None:
    """Every list of full attention is cut: 24 tokens are lists of 6, 3 and 6."""
    kept, answered = [range(14), range(7), range(2, 6)], [range(6), range(3), {4, 5}]
    hits(bench, [FULL, full(8), SHORT], kept, 24, answered)


@example("KV-COORD-12", "KV-MGR-2")
def there_is_no_uncached_common_prefix_where_nobody_searches(bench: Bench) -> None:
    cases: tuple[tuple[tuple[Any, ...], dict[str, Any], dict[str, Any], int | None], ...] = (
        ((FULL,), {}, {}, None),
        ((FULL, SHORT), {"enable_caching": False}, {}, None),
        ((FULL, SHORT), {}, {"skip_reading_cache": True}, None),
        ((FULL, SHORT), {}, {}, 0),
    )
    for specs, options, content, expected in cases:
        manager = bench.manager(40, *specs, **options)
        hit = manager.get_computed_blocks(manager.request("r", range(16), **content))
        found = hit.uncached_common_prefix_tokens
        equal(found, expected, f"{len(specs)} groups, {options}, {content}")


@example("KV-COORD-12", "KV-MGR-2")
def a_request_that_skips_reading_has_no_uncached_common_prefix(bench: Bench) -> None:
    """Not even that of the look-up before it, 40 tokens."""
    manager, request, _ = place(bench, [FULL, SHORT], [range(10), ()])
    equal(manager.get_computed_blocks(request).uncached_common_prefix_tokens, 40)
    skipping = manager.request("r", range(60), skip_reading_cache=True)
    equal(manager.get_computed_blocks(skipping).uncached_common_prefix_tokens, None)


@example("KV-COORD-13", "KV-GRP-1")
def caching_ends_at_a_boundary_and_one_block_later_with_eagle(bench: Bench) -> None:
    """Caching ends at a boundary, and one block later with eagle."""
    for computed, flagged, plain in (
        (14, (None, None), (None, None)), (18, (1, 4), (1, 4)), (22, (1, 5), (1, 4)),
        (28, (1, 5), (1, 4)), (32, (2, 8), (2, 8)), (36, (2, 9), (2, 8)),
    ):  # fmt: skip
        for flags, counts in (([1], flagged), ([], plain)):
            manager = bench.manager(40, full(16), SHORT, eagle_groups=flags)
            request = manager.request("r", range(40))
            manager.admit(request, computed)
            what = f"counts at {computed} tokens, flags {flags}"
            equal(manager.counts(request), counts, what)


@example("KV-COORD-13", "KV-MGR-11")
def caching_goes_on_where_it_ended(bench: Bench) -> None:
    """Caching goes on where it ended: the fifth block at 20 tokens, the next at 32."""
    manager = bench.manager(40, full(16), SHORT, eagle_groups=[1])
    request = manager.request("r", range(40))
    manager.admit(request, 18)
    seen = []
    for _ in range(18):
        manager.run(request)
        seen.append(manager.counts(request)[1])
    equal(seen, [4, *[5] * 12, *[8] * 4, 9], "counts from 19 tokens on")


@example("KV-COORD-1", "KV-POOL-6", "KV-MGR-12")
def without_caching_any_number_of_equal_groups_shares_the_pool(bench: Bench) -> None:
    manager = bench.manager(10, full(8), full(8), enable_caching=False)
    request = manager.request("r", range(20))
    lists = ((1, 2, 3), (4, 5, 6))
    manager.same(manager.admit(request), lists)
    if bench.has(Feature.UNHASHED_BLOCKS):
        manager.same(manager.get_unhashed_block_ids(request), lists)
    manager.free(request)
    manager.queues([6, 5, 4, 3, 2, 1, 7, 8, 9])


@example("KV-COORD-1", "KV-CFG-2", "KV-CFG-3")
def without_a_group_a_request_needs_nothing(bench: Bench) -> None:
    manager = bench.manager(6, specs=[], enable_caching=False)
    request = manager.request("r", range(20))
    empty = PrefixHit(KVCacheBlocks(()), 0)
    equal(manager.get_computed_blocks(request), empty)
    equal(manager.allocate_slots(request, 20), KVCacheBlocks(()))
    equal(tuple(manager.get_num_common_prefix_blocks(request)), ())
    equal(manager.num_free_blocks, 5)
    ask = manager.find_longest_cache_hit_per_group
    with raises(UnsupportedError):
        ask(request, 8)


@cases(1, 2)
@example("KV-COORD-1", "KV-MGR-2", "KV-MGR-11", "KV-MGR-15")
def without_caching_nothing_is_looked_up_or_cached(bench: Bench, groups: int) -> None:
    """A reset is the only event."""
    options: dict[str, Any] = {"enable_caching": False, "enable_events": True, "log_stats": True}
    manager = bench.manager(20, *[full()] * groups, **options)
    first = manager.started("a", range(8))
    equal(tuple(manager.get_num_common_prefix_blocks(first)), (0,) * groups)
    second = manager.started("b", range(8))
    manager.cache_blocks(first, 8)
    empty = PrefixHit(KVCacheBlocks.empty(groups), 0, None)
    equal(manager.get_computed_blocks(second), empty)
    found = getattr(manager.make_prefix_cache_stats(), "requests", None)
    equal(found, 0, "requests counted")
    if bench.has(Feature.SNAPSHOT):
        equal(dict(manager.snapshot().lookup_order), {})
    manager.free(first)
    manager.free(second)
    equal(tuple(manager.take_events()), ())
    equal(manager.reset_prefix_cache(), True)
    equal(tuple(manager.take_events()), (AllBlocksCleared(),))


@example("KV-COORD-2", "KV-CFG-4", "KV-CFG-5")
def with_one_group_the_span_is_the_only_granularity(bench: Bench) -> None:
    """With one group the span is the only granularity: blocks of 2 on 2 ranks."""
    manager = bench.manager(6, full(2), dcp_world_size=2)
    sizes = manager.config.scheduler_block_size_tokens, manager.config.hash_block_size_tokens
    equal(sizes, (4, 4), "block sizes of scheduler and hashes")
    request = manager.request("first", range(11))
    for new, cached in ((7, [0]), (4, [0, 1])):
        manager.run(request, new)
        equal(manager.cached_positions(request), cached, f"cached after {new} tokens")
    hit = manager.get_computed_blocks(manager.request("r", range(11)))
    manager.same(hit.blocks, [[1, 2]])
    found = (hit.hit_length_tokens, hit.uncached_common_prefix_tokens)
    equal(found, (8, None), "its length")
