"""The chapter on sliding windows (KV-SW): what a window skips, hits and holds."""

from __future__ import annotations

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.placed import hits, needs_capped
from kvcheck.rules.specs import full, sliding, sliding_mla
from kvspec.events import BlockStored
from kvspec.interface import Feature
from kvspec.specs import LayerSpec


@example("KV-SW-1", "KV-GRP-2")
def a_block_is_skipped_once_its_last_token_left_the_window(bench: Bench) -> None:
    manager = bench.manager(10, sliding(4, 4))  # at 7 tokens token 7 sees 4 … 7: block 0 goes
    request = manager.started("r", range(16))
    for computed, nulls in ((6, []), (7, [0]), (10, [0]), (11, [0, 1])):
        manager.remove_skipped_blocks(request, computed)
        equal(manager.null_positions(request), nulls, f"nulls at {computed} tokens")


@example("KV-SW-1", "KV-MGR-6")
def blocks_out_of_the_window_are_released_while_the_request_runs(bench: Bench) -> None:
    manager = bench.manager(4, sliding(4, 4), enable_caching=False)
    request = manager.request("r", range(20))
    for _ in range(5):
        manager.run(request, 4)
    equal(manager.null_positions(request), [0, 1, 2])
    equal(manager.num_free_blocks, 1)


@cases((0, [0]), (3, [0]), (4, []), (99, []))
@example("KV-MGR-21", "KV-MGR-6", "KV-SW-1")
def what_tokens_in_flight_read_is_not_released(
    bench: Bench, in_flight: int, nulls: list[int]
) -> None:
    """Of 12 computed tokens those in flight do not move the window; refused or granted."""
    bench.need(Feature.IN_FLIGHT)
    for num_blocks, is_granted in ((10, True), (4, False)):
        manager = bench.manager(num_blocks, sliding(4, 6), enable_caching=False)
        request = manager.started("r", range(12))
        request.num_in_flight_tokens = in_flight
        manager.append(request, range(8))
        equal(manager.allocate_slots(request, 8) is not None, is_granted)
        equal(manager.null_positions(request), nulls, f"nulls with {in_flight} tokens in flight")


@example("KV-SW-2", "KV-SW-3")
def a_hit_is_the_rightmost_run_that_fills_the_window(bench: Bench) -> None:
    """A hit is the rightmost run that fills the window, cdiv(W - 1, B) blocks, null before it."""
    hits(bench, [sliding(4, 8)], [{2, 3, 5}], 16, [{2, 3}])
    for tokens, need in ((2, 1), (5, 1), (6, 2), (9, 2), (10, 3), (13, 3), (14, 4)):
        hits(bench, [sliding(4, tokens)], [range(14)], 56, [range(14 - need, 14)])


@example("KV-SW-2", "KV-SW-5")
def with_a_drop_the_run_is_one_block_longer(bench: Bench) -> None:
    hits(bench, [sliding(4, 8)], [{1, 2, 3}], 12, [{1, 2}], use_eagle=True)
    hits(bench, [sliding(4, 8)], [{2, 3}], 0, [()], use_eagle=True)


@example("KV-SW-2")
def a_run_ends_where_hits_may_end(bench: Bench) -> None:
    """A run ends where hits may end; with a drop one block beyond."""
    specs = [full(8), sliding(4, 14)]
    hits(bench, specs, [range(7), range(5)], 16, [range(2), range(4)])
    hits(bench, specs, [range(7), range(1, 5)], 0, [(), ()])
    dropping = [full(8), sliding(4, 5)]
    hits(bench, dropping, [range(7), (1, 2, 3)], 8, [{0}, {1}], own=(56, 8), eagle_groups=[1])
    third = [full(12), sliding(4, 6)]
    kept = [range(4), range(6, 12)]
    hits(bench, third, kept, 36, [range(3), {7, 8}], own=(48, 36), eagle_groups=[1])


@example("KV-SW-4")
def a_run_from_the_start_counts_however_short(bench: Bench) -> None:
    """A run from the start counts however short, if no full one is there."""
    for kept, length in (
        ({0}, 1), ({0, 1}, 2), ({0, 1, 3, 4}, 2), ({1}, 0), ({1, 2}, 0), ({0, 1, 2}, 3),
    ):  # fmt: skip
        hits(bench, [sliding(4, 13)], [kept], 4 * length, [range(length)])
    hits(bench, [sliding(4, 9)], [{0, 3, 4}], 20, [{3, 4}])
    hits(bench, [sliding(4, 9)], [{0, 3}], 4, [{0}])


@example("KV-SW-4")
def a_run_from_the_start_is_cut_to_the_alignment(bench: Bench) -> None:
    for num, length in ((1, 0), (2, 8), (3, 8), (4, 16)):
        answered = [range(length // 8), range(length // 4)]
        hits(bench, [full(8), sliding(4, 33)], [range(7), range(num)], length, answered)


@example("KV-SW-5", "KV-SW-4")
def a_run_from_the_start_drops_its_last_block(bench: Bench) -> None:
    for num, length in ((1, 0), (2, 1), (3, 2)):
        answered = [range(length)]
        hits(bench, [sliding(4, 13)], [range(num)], 4 * length, answered, use_eagle=True)


@example("KV-SW-5", "KV-SW-4")
def after_the_drop_a_run_from_the_start_is_cut_again(bench: Bench) -> None:
    specs = [full(8), sliding(4, 33)]
    for num, length in ((2, 0), (3, 0), (4, 0), (5, 8)):
        own, places = (56, length), [range(length // 8), range(length // 4)]
        hits(bench, specs, [range(7), range(num)], length, places, own=own, eagle_groups=[1])
    # k = 7 passes the first cut, for (7 - 1) · 4 = 24; then 6, 5, 3.
    cut = [full(12), sliding(4, 30)]
    hits(bench, cut, [range(4), range(7)], 12, [range(1), range(3)], eagle_groups=[1])
    for kept in ({1, 2}, {1}, {0, 2, 3}):
        specs = [full(8), sliding(4, 14)]
        hits(bench, specs, [range(7), kept], 0, [(), ()], own=(56, 0), eagle_groups=[1])


@example("KV-SW-6")
def a_window_of_one_token_caches_and_hits_nothing(bench: Bench) -> None:
    """A window of one token caches and hits nothing, while the count goes on."""
    manager = bench.manager(10, sliding(4, 1))
    first = manager.started("first", range(12))
    hit = manager.get_computed_blocks(manager.request("r", range(16)))
    equal(hit.hit_length_tokens, 0)
    equal(manager.cached_positions(first), [])
    equal(manager.counts(first), (3,))


@example("KV-SW-6")
def a_window_of_one_token_with_a_drop_hits_nulls(bench: Bench) -> None:
    """With a drop a window of one token hits nulls: the block behind them is cached and dropped."""
    manager = bench.manager(10, sliding(4, 1), use_eagle=True)
    first = manager.started("first", range(20))
    hit = manager.get_computed_blocks(manager.request("r", range(20)))
    manager.same(hit.blocks, [[0, 0, 0]])
    equal(manager.cached_positions(first), [0, 1, 2, 3, 4])


@example("KV-SW-3", "KV-GRP-5", "KV-GRP-11")
def skipped_hits_are_counted_once(bench: Bench) -> None:
    """Null, null, 3, 4 of 16 tokens are a count of four, and of five with the next block."""
    manager = bench.manager(8, sliding(4, 8))
    manager.started("first", range(16))
    second = manager.request("second", range(20))
    manager.admit(second, 1)
    equal(manager.counts(second), (4,))
    manager.run(second, 3)
    equal(manager.counts(second), (5,))


@example("KV-GRP-4", "KV-SW-1")
def hits_that_a_load_skips_cost_nothing(bench: Bench) -> None:
    """8 tokens hit and 8 of a load: s(16) = 13 skips the hits; two of three blocks are taken."""
    for reserved, fits in ((1, True), (2, False)):
        manager = bench.manager(4, sliding(4, 4))
        manager.free(manager.started("first", range(8)))
        request = manager.request("r", range(20))
        load = {"num_external_computed_tokens": 8, "reserved_blocks": reserved}
        equal(manager.admit(request, 1, **load) is not None, fits, f"granted beside {reserved}")
        manager.same(manager.lists(request), [[0, 0, 0, 3, 2]] if fits else [[]])


@example("KV-SW-7")
def admission_counts_a_window_a_step_and_one_block(bench: Bench) -> None:
    """Admission counts a window, a step and one block: W = 6, cdiv(5 + 8, 4) + 1 = 5 of 4."""
    needs_capped(
        bench, sliding(4, 6), (8, 100, 80, 5), (8, 100, 16, 4), (8, 12, 12, 3),
        (3, 100, 80, 3), (7, 10, 80, 4), (8, 8, 80, 3),
    )  # fmt: skip


@example("KV-SW-7", "KV-MGR-5")
def a_long_request_is_admitted_with_what_its_window_needs(bench: Bench) -> None:
    """A long request is admitted with what its window needs, and runs to its end in that."""
    for num_blocks in (6, 5):
        manager = bench.manager(num_blocks, sliding(4, 6), max_num_batched_tokens=8)
        request = manager.request("r", range(80))
        granted = manager.allocate_slots(request, 8, full_sequence_must_fit=True) is not None
        equal(granted, num_blocks == 6, f"granted in {num_blocks} blocks")
        if granted:
            request.num_computed_tokens = 8
            for _ in range(9):
                manager.run(request, 8)


@example("KV-SW-8", "KV-MGR-15")
def a_window_has_no_common_prefix(bench: Bench) -> None:
    manager = bench.manager(10, sliding(4, 8))
    request = manager.started("r", range(12))
    equal(tuple(manager.get_num_common_prefix_blocks(request)), (0,))


@cases(sliding(4, 8), sliding_mla(4, 8))
@example("KV-SW-8", "KV-GRP-10", "KV-EVT-2")
def a_window_over_latents_behaves_as_any(bench: Bench, spec: LayerSpec) -> None:
    """A window over latents behaves as any; nothing is zeroed, events name kind and window."""
    manager = bench.manager(8, spec, enable_events=True)
    first = manager.started("first", range(16))
    manager.remove_skipped_blocks(first, 16)
    manager.same(manager.lists(first), [[0, 0, 3, 4]])
    manager.queues([5, 6, 7, 2, 1])
    hit = manager.get_computed_blocks(manager.request("r", range(20)))
    manager.same(hit.blocks, [[0, 0, 3, 4]])
    if bench.has(Feature.UNHASHED_BLOCKS):
        equal(tuple(manager.get_unhashed_block_ids(first)), ((),))
    if bench.has(Feature.NEW_BLOCK_IDS):
        equal(tuple(manager.take_new_block_ids()), ())
    told = [e for e in manager.take_events() if isinstance(e, BlockStored)]
    shown = [(e.spec_kind, e.sliding_window_tokens) for e in told]
    equal(shown, [(spec.kind, 8)], "events")
    holds(spec.kind in ("sliding_window", "sliding_window_mla"), "its name")
