"""What the pool caches: keys, eviction by id, reset and copies (KV-POOL)."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvspec.errors import UnknownBlockError
from kvspec.events import AllBlocksCleared
from kvspec.request import Request


@example("KV-POOL-10", level=Level.IDENTITY)
def eviction_drops_the_keys_and_nothing_else(bench: Bench) -> None:
    """Evicting [0, 3, 2] leaves lists, references, counts and the queue as they were."""
    manager, a, b = bench.story()
    before = manager.snapshot()
    manager.evict_blocks([0, 3, 2])
    after = manager.snapshot()
    keys = {key: order for key, order in before.lookup_order.items() if order != (2,)}
    expected = replace(
        before,
        block_keys=(*before.block_keys[:2], (), *before.block_keys[3:]),
        lookup_order=keys,
        covered_tokens=(0, 4, 0, 0, 0, 0),
    )
    equal(after, expected)
    equal(manager.hit(a), [1])
    manager.free(a)
    equal(manager.queue(), [3, 5])
    manager.free(b)
    equal(manager.queue(), [4, 2, 3, 5, 1])


@example("KV-POOL-10", "KV-GRP-11", level=Level.IDENTITY)
def an_evicted_block_is_not_registered_again_for_its_owner(bench: Bench) -> None:
    """Request a fills its third block; block 2 stays without a key."""
    manager, a, _ = bench.story()
    manager.evict_blocks([2])
    manager.cache_blocks(a, 10)
    equal(manager.cached(), {1})
    equal(manager.cached_count(a), 2)


@cases(-1, 6, True, "2", None, 2.0)
@example("KV-POOL-10", "KV-ERR-3", level=Level.SAFETY)
def all_ids_are_checked_before_the_first_eviction(bench: Bench, bad: object) -> None:
    """With one bad id behind it, block 2 keeps its key."""
    manager = bench.story()[0]
    with manager.refuses(UnknownBlockError):
        manager.evict_blocks([2, bad])


@example("KV-POOL-11", "KV-EVT-5", level=Level.IDENTITY)
def a_reset_is_refused_until_the_pool_is_idle(bench: Bench) -> None:
    """False while a request or a deferred free holds a block; True once all are free."""
    manager = bench.manager(6, enable_events=True, log_stats=True)
    request = manager.started("r", range(1, 11))
    before = manager.everything()
    holds(manager.reset_prefix_cache() is False)
    popped = manager.pop_blocks_for_free(request)
    holds(manager.reset_prefix_cache() is False)
    equal(manager.snapshot().block_keys, before.snapshot.block_keys)
    manager.free_blocks(popped[::-1])
    equal(manager.queue(), [3, 4, 5, 2, 1])
    equal(manager.take_events(), ())
    holds(manager.reset_prefix_cache() is True)
    equal(manager.queue(), [3, 4, 5, 2, 1])
    equal(manager.snapshot().lookup_order, {})
    equal(manager.hit(request), [])


@example("KV-POOL-11")
def a_reset_of_an_empty_cache_succeeds(bench: Bench) -> None:
    """With nothing cached it still clears and marks the statistics."""
    manager = bench.manager(6, enable_events=True, log_stats=True)
    holds(manager.reset_prefix_cache() is True)
    equal(manager.take_events(), (AllBlocksCleared(),))
    stats = manager.make_prefix_cache_stats()
    holds(stats is not None)
    holds(stats.reset)


# Copies of one content.


def two_copies(bench: Bench) -> tuple[Managed, Request, Request]:
    """Blocks 1 and 2 hold the same four tokens, computed in one step."""
    manager = bench.manager(6)
    a = manager.request("a", [1, 2, 3, 4])
    b = manager.request("b", [1, 2, 3, 4])
    holds([manager.allocate_slots(r, 4, delay_cache_blocks=True) for r in (a, b)])
    for request in (a, b):
        request.num_computed_tokens = 4
        manager.cache_blocks(request, 4)
    return manager, a, b


@example("KV-POOL-13", level=Level.IDENTITY)
def a_look_up_answers_the_first_registered_copy(bench: Bench) -> None:
    """Block 1 until it is evicted, then 2, and still 2 when a third copy is registered."""
    manager, _, _ = two_copies(bench)
    asker = manager.request("c", [1, 2, 3, 4, 5])
    equal(manager.hit(asker), [1])
    manager.evict_blocks([1])
    equal(manager.hit(asker), [2])
    third = manager.request("d", [1, 2, 3, 4])
    manager.allocate_slots(third, 4)
    equal(manager.blocks(third), [3])
    equal(manager.hit(asker), [2])
    equal(list(manager.snapshot().lookup_order.values()), [(2, 3)])


@example("KV-POOL-14", level=Level.IDENTITY)
def copies_are_kept_apart(bench: Bench) -> None:
    """Both requests keep their own block, both blocks stay cached under one key."""
    manager, a, b = two_copies(bench)
    equal((manager.blocks(a), manager.blocks(b)), ([1], [2]))
    equal(list(manager.snapshot().lookup_order.values()), [(1, 2)])
    manager.free(a)
    manager.free(b)
    equal(manager.queue(), [3, 4, 5, 1, 2])
    asker = manager.request("c", [1, 2, 3, 4, 5])
    other = manager.request("d", range(50, 66))
    manager.allocate_slots(other, 16, delay_cache_blocks=True)
    equal(manager.blocks(other), [3, 4, 5, 1])
    equal(manager.hit(asker), [2])
    manager.run(manager.request("e", [60]))
    equal(manager.hit(asker), [])


@example("KV-POOL-18", level=Level.IDENTITY)
def hit_blocks_are_not_registered_again(bench: Bench) -> None:
    """When b fills its third block only that is registered: keys and order of 1 and 2 stay."""
    manager = bench.manager(6, enable_events=True)
    a = manager.request("a", range(1, 11))
    b = manager.request("b", [*range(1, 9), 20, 21, 22, 23])
    manager.admit(a)
    manager.admit(b, 1)
    equal(manager.cached_count(b), 2)
    before = manager.snapshot()
    manager.take_events()
    manager.run(b, 3)
    after = manager.snapshot()
    equal(after.block_keys[1:3], before.block_keys[1:3])
    keys = [key for block in (1, 2) for key in before.block_keys[block]]
    equal([after.lookup_order[key] for key in keys], [(1,), (2,)])
    (stored,) = manager.take_events()
    equal(getattr(stored, "block_hashes", ()), (b.block_hashes[2],))
