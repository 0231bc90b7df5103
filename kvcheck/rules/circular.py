"""Circular buffers (KV-CIRC), and what being outside prefix caching means (KV-COORD-14)."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, ring, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import ConfigError, InvalidArgumentError


def beside_a_ring(bench: Bench, num_blocks: int = 20, *, capacity: int = 2) -> Managed:
    """Full attention with block size 4, then a circular buffer."""
    return bench.manager(num_blocks, full(4), ring(capacity))


@example("KV-CIRC-1", "KV-MGR-18")
def a_ring_needs_one_block_once(bench: Bench) -> None:
    """A ring needs one block for whoever has none, whatever the tokens."""
    manager = beside_a_ring(bench)
    request = manager.request("r", range(40))
    for capped in (False, True):
        equal(manager.need(request, 9, capped=capped), 4, "for 9 tokens")
    manager.allocate_slots(request, 9)
    request.num_computed_tokens = 9
    equal(manager.need(request, 17, computed=9), 2, "for 8 more")


@example("KV-CIRC-1", "KV-MGR-7")
def a_ring_that_does_not_fit_is_refused(bench: Bench) -> None:
    """A ring that does not fit is refused, and nothing is taken."""
    for num_blocks, fits in ((5, True), (4, False)):
        manager = beside_a_ring(bench, num_blocks)
        granted = manager.allocate_slots(manager.request("r", range(9)), 9) is not None
        equal(granted, fits, f"granted in {num_blocks} blocks")
        equal(manager.num_free_blocks, 0 if fits else 3)


@example("KV-CIRC-2", "KV-GRP-1", "KV-MGR-11", "KV-POOL-8")
def a_ring_is_taken_once_and_kept(bench: Bench) -> None:
    """A ring is taken once and kept: one block, no count, no limit to what is computed."""
    manager = beside_a_ring(bench)
    request = manager.request("r", range(17))
    manager.same(manager.allocate_slots(request, 9), ((1, 2, 3), (4,)), "at first")
    request.num_computed_tokens = 9
    manager.same(manager.allocate_slots(request, 8), ((5, 6), ()), "later")
    request.num_computed_tokens = 17
    manager.cache_blocks(request, 17)
    manager.remove_skipped_blocks(request, 17)
    manager.same(manager.lists(request), [[1, 2, 3, 5, 6], [4]])
    equal(manager.counts(request), (4, None))
    if bench.zeroes_full_attention:
        manager.same(manager.take_new_block_ids(), (1, 2, 3, 5, 6))
    manager.free(request)
    manager.queues([4, 6, *range(7, 20), 5, 3, 2, 1])


@example("KV-CIRC-2", "KV-GRP-6", "KV-GRP-8")
def external_tokens_take_the_ring(bench: Bench) -> None:
    """External tokens take the ring with the external blocks, before any new one."""
    manager = beside_a_ring(bench)
    request = manager.request("r", range(12))
    answer = manager.allocate_slots(request, 1, num_external_computed_tokens=8)
    manager.same(answer, ((4,), ()), "the answer")
    manager.same(manager.lists(request), [[1, 2, 4], [3]])
    equal(manager.counts(request), (2, None))


@example("KV-COORD-14", "KV-COORD-5", "KV-CFG-5")
def a_ring_is_no_part_of_a_hit(bench: Bench) -> None:
    """A ring is no part of a hit; hashes are as without it, hits end where all blocks do."""
    manager = beside_a_ring(bench, capacity=6)
    config = manager.real.config
    sizes = (config.hash_block_size_tokens, config.scheduler_block_size_tokens)
    equal(sizes, (4, 12), "the sizes of hashes and of the scheduler's block")
    first = manager.started("a", range(30))
    again = manager.request("b", range(30))
    hit = manager.get_computed_blocks(again)
    manager.same(hit.blocks, ((1, 2, 3, 4, 5, 6), ()), "the hit")
    equal(hit.hit_length_tokens, 24)
    manager.admit(again)
    manager.same(manager.lists(again), [[1, 2, 3, 4, 5, 6, 10, 11], [12]])
    manager.free(first)
    equal(manager.cached(), {1, 2, 3, 4, 5, 6} if manager.exact else manager.cached())


@example("KV-COORD-14", "KV-COORD-9")
def a_ring_has_no_hit_of_its_own(bench: Bench) -> None:
    """A ring has no hit of its own, and neither flags nor windows beside it change that."""
    manager = bench.manager(20, full(2), sliding(2, 3), ring(2), use_eagle=True)
    manager.started("a", range(9))
    found = manager.find_longest_cache_hit_per_group(manager.request("b", range(9)), 8)
    equal(found.hit_lengths_tokens, (6, 6, 0))
    manager.same(found.blocks, ((1, 2, 3), (0, 0, 8), ()))


@example("KV-COORD-14", "KV-MGR-8", "KV-PART-1")
def hits_in_a_ring_are_illegal(bench: Bench) -> None:
    """Hits in a ring are illegal, and so are keys; the state stays as it was."""
    manager = bench.manager(20, full(2), ring(4), hash_block_size_tokens=1)
    first = manager.started("a", range(9))
    own, held = manager.lists(first)
    request = manager.request("b", range(9))
    before = manager.snapshot()
    for blocks in ((own[:4], held), (own[:4], [0])):
        with raises(InvalidArgumentError, field="new_computed_blocks[1]"):
            manager.allocate_slots(
                request, 1, num_new_computed_tokens=8, new_computed_blocks=KVCacheBlocks(blocks)
            )
    with raises(InvalidArgumentError, field="group"):
        manager.cache_partial_block(first, 1, 3)
    equal(manager.snapshot(), before, "the state")
    manager.same(manager.get_computed_blocks(request).blocks, ((1, 2, 3, 4), ()), "the hit")


@cases((1,), (2,))
@example("KV-COORD-14", "KV-ERR-5", level=Level.SAFETY)
def caching_needs_more_than_rings(bench: Bench, count: int) -> None:
    """Caching needs more than rings; without it they may stand alone."""
    rings = [ring(4) for _ in range(count)]
    with raises(ConfigError, field="kv_cache.groups"):
        bench.manager(10, *rings)
    manager = bench.manager(10, *rings, enable_caching=False)
    answer = manager.allocate_slots(manager.request("r", range(9)), 9)
    manager.same(answer, tuple((number + 1,) for number in range(count)))
