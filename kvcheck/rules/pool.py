"""The free queue and references (KV-POOL)."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.specs import full
from kvspec.errors import BlockReleaseError

# Taking blocks.


@example("KV-POOL-1", level=Level.IDENTITY)
def the_null_block_is_never_given_away(bench: Bench) -> None:
    """A pool of 6 blocks has 5 to give away, and block 0 has no references and no keys."""
    manager = bench.manager(6)
    equal(manager.num_free_blocks, 5)
    manager.admit(manager.request("r", range(20)))
    snapshot = manager.snapshot()
    equal(snapshot.free_queue, ())
    equal(snapshot.ref_counts, (0, 1, 1, 1, 1, 1))
    equal(snapshot.block_keys[0], ())


@example("KV-POOL-1", "KV-POOL-9", "KV-POOL-10", level=Level.IDENTITY)
def a_release_and_an_eviction_pass_over_null(bench: Bench) -> None:
    """Returning [0, 3, 0] returns block 3; evicting block 0 does nothing."""
    manager, a, _ = bench.story()
    manager.pop_blocks_for_free(a)
    manager.free_blocks([0, 3, 0])
    equal(manager.queue(), [3, 5])
    before = manager.visible()
    manager.evict_blocks([0])
    equal(manager.visible(), before)


@example("KV-POOL-2", level=Level.IDENTITY)
def blocks_are_first_taken_in_the_order_of_their_ids(bench: Bench) -> None:
    """The queue starts as 1, 2, 3, 4, 5, and the first request gets block 1."""
    manager = bench.manager(6)
    equal(manager.queue(), [1, 2, 3, 4, 5])
    request = manager.started("r", [7])
    equal(manager.blocks(request), [1])


@example("KV-POOL-3", level=Level.IDENTITY)
def blocks_are_taken_from_the_front_or_not_at_all(bench: Bench) -> None:
    """From the queue 4, 3, 5, 2, 1 two blocks are 4 and 3; six are refused."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.free(b)
    equal(manager.queue(), [4, 3, 5, 2, 1])
    before = manager.visible()
    equal(manager.admit(manager.request("c", range(50, 74))), None)
    equal(manager.visible(), before)
    request = manager.started("d", range(50, 58))
    equal(manager.blocks(request), [4, 3])
    equal(manager.references(), {4: 1, 3: 1})
    equal(manager.queue(), [5, 2, 1])


@example("KV-POOL-4", level=Level.IDENTITY)
def a_cached_block_that_is_taken_loses_its_keys(bench: Bench) -> None:
    """A request that takes 4, 3, 5, 2 evicts block 2, and a look-up then ends after block 1."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.free(b)
    taker = manager.request("c", range(50, 66))
    manager.allocate_slots(taker, 16, delay_cache_blocks=True)
    equal(manager.blocks(taker), [4, 3, 5, 2])
    equal(manager.cached(), {1})
    equal(manager.hit(a), [1])


@example("KV-POOL-5", level=Level.IDENTITY)
def touching_takes_a_free_block_out_of_the_queue(bench: Bench) -> None:
    """From the queue 4, 3, 5, 2, 1 touching 1 and 2 leaves 4, 3, 5."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.free(b)
    request = manager.request("c", [*range(1, 9), 30])
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(
        request,
        0,
        num_new_computed_tokens=8,
        new_computed_blocks=hit.blocks,
        num_external_computed_tokens=1,
    )
    equal(manager.blocks(request), [1, 2, 4])
    equal(manager.queue(), [3, 5])
    equal(manager.references(), {1: 1, 2: 1, 4: 1})


@example("KV-POOL-5", level=Level.IDENTITY)
def touching_a_block_in_use_adds_a_reference(bench: Bench) -> None:
    """Blocks 1 and 2 were hit by b while a held them: two references each."""
    manager = bench.story()[0]
    equal(manager.references(), {1: 2, 2: 2, 3: 1, 4: 1})
    equal(manager.queue(), [5])


# Releasing blocks.


@example("KV-POOL-6", "KV-POOL-8", level=Level.IDENTITY)
def unhashed_blocks_go_to_the_front_and_cached_ones_to_the_back(bench: Bench) -> None:
    """The queue 5 becomes 3, 5 after the release of a, and 4, 3, 5, 2, 1 after that of b."""
    manager, a, b = bench.story()
    manager.free(a)
    equal(manager.queue(), [3, 5])
    manager.free(b)
    equal(manager.queue(), [4, 3, 5, 2, 1])


@example("KV-POOL-6", level=Level.IDENTITY)
def unhashed_blocks_of_one_call_stay_in_list_order(bench: Bench) -> None:
    """Releasing two unhashed blocks in one call as [3, 4] puts 3 before 4."""
    manager = bench.manager(6)
    request = manager.request("r", range(16))
    manager.allocate_slots(request, 16, delay_cache_blocks=True)
    manager.pop_blocks_for_free(request)
    manager.free_blocks([3, 4])
    equal(manager.queue(), [3, 4, 5])


@example("KV-POOL-6", level=Level.IDENTITY)
def cached_is_what_is_cached_at_the_moment_of_the_call(bench: Bench) -> None:
    """Block 2 was cached when it was taken into the list, but not when it is released."""
    manager, a, b = bench.story()
    manager.free(b)
    manager.evict_blocks([2])
    manager.free(a)
    equal(manager.queue(), [3, 2, 4, 5, 1])


@example("KV-POOL-7", "KV-COORD-1", level=Level.IDENTITY)
def each_group_is_released_in_a_call_of_its_own(bench: Bench) -> None:
    """Two calls, [3, 2, 1] and [6, 5, 4]: the run of the later group lands in front."""
    manager = bench.manager(10, full(8), full(8), enable_caching=False)
    request = manager.started("r", range(20))
    equal(manager.get_blocks(request).to_lists(), [[1, 2, 3], [4, 5, 6]])
    manager.free(request)
    equal(manager.queue(), [6, 5, 4, 3, 2, 1, 7, 8, 9])


@cases((False, [5, 2, 1, 4, 3]), (True, [5, 4, 3, 2, 1]))
@example("KV-POOL-7", "KV-MGR-12", "KV-MGR-13", level=Level.IDENTITY)
def the_cut_into_calls_shows_in_the_order_of_cached_blocks(
    bench: Bench, deferred: bool, queue: list[int]
) -> None:
    """Cached 1, 2 in group 0 and 3, 4 in group 1: calls [2, 1] and [4, 3], or [4, 3, 2, 1]."""
    manager = bench.manager(6, full(4), full(4, head_size=16))
    request = manager.started("r", range(8))
    equal(manager.get_blocks(request).to_lists(), [[1, 2], [3, 4]])
    equal(manager.queue(), [5])
    if deferred:
        manager.free_blocks(manager.pop_blocks_for_free(request)[::-1])
    else:
        manager.free(request)
    equal(manager.queue(), queue)


@example("KV-POOL-7", "KV-MGR-13", level=Level.IDENTITY)
def a_deferred_free_is_one_release_call(bench: Bench) -> None:
    """Blocks returned in one call form one run, those of two calls two."""
    queues = []
    for calls in ([[3, 2, 1]], [[3, 2], [1]]):
        manager = bench.manager(6)
        request = manager.request("r", range(12))
        manager.allocate_slots(request, 12, delay_cache_blocks=True)
        manager.pop_blocks_for_free(request)
        for call in calls:
            manager.free_blocks(call)
        queues.append(manager.queue())
    equal(queues, [[3, 2, 1, 4, 5], [1, 3, 2, 4, 5]])


@example("KV-POOL-8", level=Level.IDENTITY)
def the_last_block_of_a_request_is_evicted_first(bench: Bench) -> None:
    """The release call of the list 1, 2, 3 is [3, 2, 1]: block 3 comes before 2 and 1."""
    manager = bench.manager(6)
    request = manager.started("r", range(12))
    manager.free(request)
    equal(manager.queue(), [4, 5, 3, 2, 1])


@cases(([1, 1], 1, 2, 1), ([3, 2, 1, 3], 3, 2, 1), ([4], 4, 1, 0), ([5], 5, 1, 0))
@example("KV-POOL-9", "KV-ERR-2", level=Level.IDENTITY)
def only_popped_references_can_be_returned(
    bench: Bench, blocks: list[int], block: int, released: int, held: int
) -> None:
    """Block 1 has two references, but only one was popped; b's own blocks were not at all."""
    manager, a, _ = bench.story()
    manager.pop_blocks_for_free(a)
    with manager.refuses(BlockReleaseError, block_id=block, released=released, held=held):
        manager.free_blocks(blocks)


@example("KV-POOL-9", level=Level.SAFETY)
def a_returned_reference_is_gone(bench: Bench) -> None:
    """After [3, 2, 1] came back, returning 3 once more is an error."""
    manager, a, _ = bench.story()
    blocks = list(manager.pop_blocks_for_free(a))
    with manager.refuses(BlockReleaseError):
        manager.free_blocks([*blocks, blocks[0]])
    manager.free_blocks([0, *reversed(blocks), 0])
    equal(manager.num_free_blocks, 2)
    with manager.refuses(BlockReleaseError):
        manager.free_blocks(blocks[-1:])


@example("KV-POOL-12")
def usage_is_the_share_of_blocks_in_use(bench: Bench) -> None:
    """Four of five blocks are in use: 1 - 1/5; none of five, or none there to use: 0.0."""
    manager = bench.story()[0]
    equal(manager.usage, 1.0 - 1 / 5)
    equal(bench.manager(6).usage, 0.0)
    equal(bench.manager(1).usage, 0.0)


@example("KV-POOL-12")
def usage_is_computed_in_double_arithmetic(bench: Bench) -> None:
    """49 of 50 blocks free: 1.0 - 49 / 50, which is not the double nearest to 0.02."""
    manager = bench.manager(51)
    manager.admit(manager.request("r", [1]))
    equal(manager.usage, 1.0 - 49 / 50)
    holds(manager.usage != 0.02)


@example("KV-POOL-15", level=Level.IDENTITY)
def every_block_is_free_or_in_use(bench: Bench) -> None:
    """While a and b run: free 5; in use 1, 2, 3, 4; together all but the null block."""
    manager = bench.story()[0]
    snapshot = manager.snapshot()
    in_use = set(manager.references())
    equal(set(snapshot.free_queue), {5})
    equal(in_use, {1, 2, 3, 4})
    equal(len(snapshot.free_queue) + len(in_use) + len(snapshot.reserved_blocks), 6 - 1)


@example("KV-POOL-16", "KV-MGR-13", level=Level.IDENTITY)
def popped_references_stay_counted(bench: Bench) -> None:
    """Block 1 has 2 references, 2 after a is popped, and 1 once it has been returned."""
    manager, a, _ = bench.story()
    equal(manager.references()[1], 2)
    manager.pop_blocks_for_free(a)
    equal(manager.references()[1], 2)
    equal(manager.snapshot().popped_blocks, (1, 2, 3))
    manager.free_blocks([1])
    equal(manager.references()[1], 1)
    equal(manager.snapshot().popped_blocks, (2, 3))


@example("KV-POOL-17", level=Level.IDENTITY)
def a_shared_block_has_the_same_index_in_every_list(bench: Bench) -> None:
    """Block 2 holds tokens 4 … 7 of a and of b and is entry 1 of both lists."""
    manager, a, b = bench.story()
    equal(manager.blocks(a), [1, 2, 3])
    equal(manager.blocks(b), [1, 2, 4])
