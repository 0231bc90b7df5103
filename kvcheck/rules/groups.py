"""The chapter on groups (KV-GRP): what every group does with its block lists."""

from __future__ import annotations

from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import IDS, cases, example
from kvcheck.rules.judging import equal
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import cross, full, mamba, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.request import Request
from kvspec.specs import LayerSpec


def two_that_share(bench: Bench, **options: Any) -> tuple[Managed, Request, Request]:
    """Six blocks of four tokens: a, 1 … 10, took 1, 2, 3; b, 1 … 8 and 20, hit 1, 2 and took 4."""
    manager = bench.manager(6, **options)
    a = manager.started("a", range(1, 11))
    return manager, a, manager.started("b", [*range(1, 9), 20])


@example("KV-GRP-1")
def a_full_block_creates_the_cached_count(bench: Bench) -> None:
    """The fourth token of a block of four brings the cached count; three have a list only."""
    manager = bench.manager(6)
    request = manager.request("r", range(4))
    for new, count in ((3, None), (1, 1)):
        manager.run(request, new)
        manager.same(manager.lists(request), [[1]])
        equal(manager.counts(request), (count,))


@example("KV-GRP-1", "KV-GRP-5", "KV-POOL-5")
def a_hit_creates_the_cached_count(bench: Bench) -> None:
    """A hit of two blocks creates a count of two, and a reference more on each."""
    manager, _, b = bench.story()
    manager.same(manager.lists(b), [[1, 2, 4]])
    equal(manager.counts(b), (2,))
    found = sorted(manager.snapshot().ref_counts)
    equal(found, [0, 0, 1, 1, 2, 2], "references")


@example("KV-GRP-1")
def the_count_vanishes_with_the_list(bench: Bench) -> None:
    """The count vanishes with the list, freed or popped."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.pop_blocks_for_free(b)
    equal(dict(manager.snapshot().requests), {})


@example("KV-GRP-2", "KV-MGR-14", "KV-POOL-7")
def blocks_before_the_window_become_null(bench: Bench) -> None:
    """Blocks before the window become null, and are released the last first."""
    manager = bench.manager(6, sliding(4, 3))
    request = manager.started("r", range(12))
    for computed, blocks in ((5, [1, 2, 3]), (12, [0, 0, 3]), (12, [0, 0, 3])):
        manager.remove_skipped_blocks(request, computed)  # s(5) = 3, s(12) = 10
        manager.same(manager.lists(request), [blocks], f"at {computed} tokens")
    manager.queues([4, 5, 2, 1])
    equal(manager.num_free_blocks, 4)


@example("KV-GRP-2", "KV-FULL-1", "KV-MGR-14")
def full_attention_replaces_nothing_by_null(bench: Bench) -> None:
    """Full attention replaces nothing by null, however much is computed."""
    manager, a, _ = bench.story()
    before = manager.visible()
    for computed in (0, 3, 10, 1000):
        manager.remove_skipped_blocks(a, computed)
        equal(manager.visible(), before, f"the state at {computed} tokens")


@cases(full(1), sliding(1, 4), mamba(1))
@example("KV-GRP-2", "KV-FULL-1", "KV-SW-1", "KV-MAMBA-1")
def the_first_token_is_not_skipped(bench: Bench, spec: LayerSpec) -> None:
    """The first token is not skipped, not even in blocks of one token."""
    manager = bench.manager(6, spec)
    request = manager.request("r", range(4))
    manager.admit(request, 1)
    for computed in (0, 1):
        manager.remove_skipped_blocks(request, computed)
        found = manager.null_positions(request)
        equal(found, [], f"nulls of {spec.kind} at {computed}")


@example("KV-GRP-3", "KV-MGR-18")
def a_running_request_needs_what_its_list_lacks(bench: Bench) -> None:
    manager, a, _ = bench.story()
    for tokens, need in ((1, 0), (12, 0), (13, 1), (16, 1), (17, 2)):
        found = manager.need(a, tokens, computed=10)
        equal(found, need, f"the need for {tokens} tokens")


@example("KV-GRP-3", "KV-GRP-4", "KV-MGR-18")
def only_without_an_entry_skipped_blocks_are_left_out_of_the_need(bench: Bench) -> None:
    manager = bench.manager(20, sliding(4, 6))  # at 40 tokens s = 35: 8 blocks
    running = manager.request("running", range(60))
    manager.admit(running, 12)
    unknown = manager.request("unknown", range(60))
    for request, need in ((running, 12 - 3), (unknown, 12 - 8)):
        found = manager.need(request, 48, computed=40)
        equal(found, need, f"the need of a request {request.request_id}")


@example("KV-GRP-4", "KV-MGR-7")
def hits_in_the_free_queue_count_towards_the_need(bench: Bench) -> None:
    """Hits in the free queue count towards the need, those in use do not."""
    for in_use, need in ((0, 5), (2, 3)):
        manager = bench.manager(10)
        first = manager.started("first", range(1, 13))
        popped = manager.pop_blocks_for_free(first)  # the others wait for a deferred free
        manager.free_blocks(popped[in_use:])
        request = manager.request("r", range(1, 18))
        hit = manager.get_computed_blocks(request)
        equal(hit.hit_length_tokens, 12)
        free = manager.num_free_blocks
        for reserved in (free - need + 1, free - need):
            answer = manager.admit(request, reserved_blocks=reserved)
            fits = reserved == free - need
            equal(answer is not None, fits, f"granted beside {reserved} of {free} blocks")
        equal(free - manager.num_free_blocks, need)


@example("KV-GRP-4", "KV-MGR-7")
def the_first_hit_counts_if_it_is_free(bench: Bench) -> None:
    for num_blocks, fits in ((3, True), (2, False)):
        manager = bench.manager(num_blocks)
        manager.free(manager.started("first", range(4)))
        second = manager.request("second", range(5))
        granted = manager.admit(second) is not None
        equal(granted, fits, f"granted with {num_blocks - 1} blocks")
        equal(manager.num_free_blocks, 0 if fits else 1)


@example("KV-GRP-4", "KV-COORD-1")
def without_caching_the_need_is_what_the_list_lacks(bench: Bench) -> None:
    manager = bench.manager(6, enable_caching=False)
    request = manager.request("r", range(9))
    manager.admit(request, 4)
    equal(manager.need(request, 9, computed=4), 2)
    manager.same(manager.run(request, 5), [[2, 3]])


@example("KV-GRP-5", "KV-GRP-6")
def external_tokens_without_hits_create_an_entry_of_zero(bench: Bench) -> None:
    """External tokens without hits create an entry of zero, and blocks that no answer names."""
    manager = bench.manager(6)
    request = manager.request("r", range(12))
    arguments = {"num_external_computed_tokens": 8, "delay_cache_blocks": True}
    equal(manager.allocate_slots(request, 0, **arguments), KVCacheBlocks(((),)))
    manager.same(manager.lists(request), [[1, 2]])
    equal(manager.counts(request), (0,))


@example("KV-GRP-6", "KV-GRP-8", "KV-GRP-11")
def external_tokens_get_blocks_behind_the_hits(bench: Bench) -> None:
    """External tokens get blocks behind the hits, and before what the answer names."""
    manager = bench.manager(10)
    manager.started("a", range(1, 9))
    request = manager.request("r", range(1, 18))
    granted = manager.admit(request, 3, num_external_computed_tokens=6, delay_cache_blocks=True)
    manager.same(granted, ((5,),), "the answer")
    manager.same(manager.lists(request), [[1, 2, 3, 4, 5]])
    equal(manager.counts(request), (2,))
    request.num_computed_tokens = 14
    manager.cache_blocks(request, 14)
    equal(manager.counts(request), (3,))


@example("KV-GRP-6")
def external_tokens_that_nobody_reads_get_no_block(bench: Bench) -> None:
    """External tokens that nobody reads get no block: s(6) = 6 with a window of 1, 5 with 2."""
    for reach, answer in ((1, [1]), (2, [])):
        manager = bench.manager(6, sliding(4, reach))
        request = manager.request("r", range(9))
        granted = manager.allocate_slots(request, 1, num_external_computed_tokens=6)
        manager.same(granted, [answer], "the answer")
        manager.same(manager.lists(request), [[0, 1]])


@example("KV-GRP-7")
def new_blocks_are_appended_in_the_order_in_which_they_are_taken(bench: Bench) -> None:
    manager = bench.manager(6)
    request = manager.request("r", range(13))
    manager.admit(request, 8)
    manager.same(manager.run(request, 5), [[3, 4]])
    manager.same(manager.lists(request), [[1, 2, 3, 4]])


@example("KV-GRP-8", level=Level.IDENTITY)
def hits_are_touched_before_any_block_is_taken(bench: Bench) -> None:
    """Hits are touched before any block is taken, although they lie in front of it."""
    manager = bench.manager(4)
    first, others = (manager.started(str(n), range(n, m)) for n, m in ((1, 5), (50, 58)))
    manager.free(first)
    manager.free(others)
    manager.queues([1, 3, 2])
    request = manager.request("r", range(1, 9))
    manager.same(manager.admit(request), ((3,),))
    manager.same(manager.lists(request), [[1, 3]])
    again = manager.request("s", [*range(1, 9), 9])
    manager.same(manager.get_computed_blocks(again).blocks, [[1, 3]])


@example("KV-GRP-8", level=Level.IDENTITY)
def no_group_takes_the_hit_of_a_later_one(bench: Bench) -> None:
    """The hits are free, in front of what is taken; nor does a load take them."""
    for external, answer, lists in (
        (0, ((3,), (4,)), [[1, 3], [2, 4]]),
        (4, ((5,), (6,)), [[1, 3, 5], [2, 4, 6]]),
    ):
        manager = bench.manager(7, full(4), full(4, head_size_v=16))
        started = [manager.started(str(t), range(t, t + 4)) for t in (0, 50, 60)]
        for each in started:
            manager.free(each)
        manager.queues([1, 2, 3, 4, 5, 6])
        request = manager.request("r", range(8 + external))
        load = {"num_external_computed_tokens": external}
        manager.same(manager.admit(request, 4, **load), answer)
        manager.same(manager.lists(request), lists)


@example("KV-GRP-9", "KV-MGR-8", level=Level.SAFETY)
def a_running_request_takes_no_hits(bench: Bench) -> None:
    manager, a, b = bench.story()
    hits = KVCacheBlocks(tuple(tuple(ids[:1]) for ids in manager.lists(b)))
    for arguments in (
        {"num_new_computed_tokens": 4, "new_computed_blocks": hits},
        {"num_new_computed_tokens": 4},
        {"new_computed_blocks": hits},
    ):
        with manager.refuses(InvalidArgumentError):
            manager.allocate_slots(a, 1, **arguments)


@example("KV-GRP-9")
def external_tokens_of_a_running_request_are_covered_by_its_new_blocks(bench: Bench) -> None:
    manager = bench.manager(6)
    request = manager.request("r", range(13))
    manager.admit(request, 8)
    granted = manager.allocate_slots(request, 1, num_external_computed_tokens=4)
    manager.same(granted, ((3, 4),), "the answer")
    manager.same(manager.lists(request), [[1, 2, 3, 4]])
    again = manager.get_computed_blocks(manager.request("again", range(14)))
    equal(again.hit_length_tokens, 12)


@example("KV-GRP-9")
def a_request_with_an_entry_in_one_of_its_groups_takes_no_external_blocks(bench: Bench) -> None:
    manager = bench.manager(20, full(2), cross(2), enable_caching=False)
    request = manager.request("r", range(8))
    arguments: dict[str, Any] = {"num_external_computed_tokens": 2, "num_encoder_tokens": 2}
    manager.allocate_slots(request, 2, **arguments)
    held = manager.lists(request)
    request.num_computed_tokens = 4
    manager.allocate_slots(request, 1, **arguments)
    lists = zip(manager.lists(request), held, strict=True)
    equal([now[: len(first)] for now, first in lists], held)


@example("KV-GRP-9", level=Level.SAFETY)
def a_request_with_blocks_but_no_entry_gets_neither_external_tokens_nor_hits(bench: Bench) -> None:
    manager = bench.manager(6)
    cached = manager.started("cached", range(4))
    request = manager.request("r", range(12))
    manager.allocate_slots(request, 3, delay_cache_blocks=True)
    hit = manager.get_blocks(cached)
    wrong: tuple[dict[str, Any], ...] = (
        {"num_external_computed_tokens": 4},
        {"new_computed_blocks": hit, "num_new_computed_tokens": 4},
    )
    for arguments in wrong:
        with manager.refuses(InvalidArgumentError):
            manager.allocate_slots(request, 1, **arguments)


@example("KV-GRP-10", "KV-MGR-16", choices=("zeroed_blocks",))
def new_blocks_are_queued_for_zeroing(bench: Bench) -> None:
    """New blocks are queued for zeroing, and hits are not."""
    manager, _, _ = bench.story()
    manager.same(manager.take_new_block_ids(), (1, 2, 3, 4))


@example("KV-GRP-10", level=Level.IDENTITY, choices=(*IDS, "zeroed_blocks"))
def a_block_that_is_freed_and_taken_again_is_queued_for_zeroing_twice(bench: Bench) -> None:
    manager = bench.manager(3)
    for name in "ab":
        manager.free(manager.started(name, (50,)))
    manager.same(manager.take_new_block_ids(), (1, 1))


@example("KV-GRP-10", "KV-GRP-6", choices=("zeroed_blocks",))
def blocks_of_external_tokens_are_queued_for_zeroing(bench: Bench) -> None:
    """Blocks of external tokens are queued for zeroing, too."""
    manager = bench.manager(6)
    manager.allocate_slots(manager.request("r", range(5)), 1, num_external_computed_tokens=4)
    manager.same(manager.take_new_block_ids(), (1, 2))


@example("KV-GRP-10", "KV-COORD-1", level=Level.IDENTITY, choices=(*IDS, "zeroed_blocks"))
def groups_queue_for_zeroing_one_after_another(bench: Bench) -> None:
    """Groups queue for zeroing one after another, with caching off, too."""
    manager = bench.manager(10, full(4), full(8), enable_caching=False)
    request = manager.request("r", range(17))
    manager.admit(request, 8)
    manager.run(request, 9)
    lists = [[1, 2, 4, 5, 6], [3, 7, 8]]
    manager.same(manager.lists(request), lists)
    manager.same(manager.take_new_block_ids(), (1, 2, 4, 5, 6, 3, 7, 8))


@example("KV-GRP-11", "KV-FULL-6", "KV-MGR-11")
def a_caching_call_covers_the_full_blocks_behind_the_count(bench: Bench) -> None:
    """A caching call covers the full blocks behind the count, and never goes back."""
    manager = bench.manager(6, enable_events=True)
    request = manager.request("r", range(16))
    manager.admit(request, 4)
    manager.allocate_slots(request, 12, delay_cache_blocks=True)
    manager.take_events()
    manager.cache_blocks(request, 14)
    equal(manager.counts(request), (3,))
    equal(manager.cached_positions(request), [0, 1, 2])
    told = [e.block_hashes for e in manager.take_events() if isinstance(e, BlockStored)]
    equal(told, [tuple(request.block_hashes[1:3])], "events")
    before = manager.visible()
    for tokens in (15, 4):
        manager.cache_blocks(request, tokens)
        equal(manager.visible(), before, f"the state after {tokens} tokens")
    equal(tuple(manager.take_events()), ())


@example("KV-GRP-11")
def a_caching_call_for_less_than_a_block_leaves_no_entry(bench: Bench) -> None:
    manager = bench.manager(6)
    request = manager.started("r", range(3))
    manager.cache_blocks(request, 3)
    equal(manager.counts(request), (None,))
