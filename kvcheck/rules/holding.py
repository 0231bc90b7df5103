"""KV-POOL: blocks that an engine holds and asks about by their ids."""

from __future__ import annotations

from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules import digests
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.specs import full
from kvspec.blocks import BlockFacts
from kvspec.errors import BlockReleaseError, InvalidArgumentError, UnknownBlockError
from kvspec.specs import SinkFullAttentionSpec

HASH_0, HASH_1 = bytes.fromhex(digests.HASH_0), bytes.fromhex(digests.HASH_1)


@example("KV-POOL-19", "KV-POOL-6", level=Level.IDENTITY)
def a_held_block_leaves_the_queue_until_it_is_returned(bench: Bench) -> None:
    """From 4, 3, 5, 2, 1: holding 2 and 5 leaves 4, 3, 1; block 2 outlives who takes all three."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.free(b)
    manager.hold_blocks([2, 5])
    equal(manager.queue(), [4, 3, 1])
    equal(manager.references(), {2: 1, 5: 1})
    taker = manager.request("c", range(50, 62))
    manager.admit(taker, delay_cache_blocks=True)
    equal(manager.blocks(taker), [4, 3, 1])
    equal(manager.cached(), {2})
    manager.free_blocks([2, 5])
    equal(manager.queue(), [5, 2])


@example("KV-POOL-19", "KV-POOL-9", level=Level.IDENTITY)
def each_reference_is_returned_once(bench: Bench) -> None:
    """Block 1, of two requests and held twice, has four references; two can be returned."""
    manager = bench.story()[0]
    manager.hold_blocks([1, 0, 1])
    equal(manager.references()[1], 4)
    equal(manager.queue(), [5])
    with manager.refuses(BlockReleaseError, block_id=1, released=3, held=2):
        manager.free_blocks([1, 1, 1])
    manager.free_blocks([1])
    manager.free_blocks([0, 1])
    with manager.refuses(BlockReleaseError, block_id=1, released=1, held=0):
        manager.free_blocks([1])
    equal(manager.references()[1], 2)


@example("KV-POOL-19", "KV-POOL-16", level=Level.IDENTITY)
def held_and_popped_references_count_together(bench: Bench) -> None:
    """Block 3, popped and held, waits for two returns."""
    manager, a, _ = bench.story()
    manager.hold_blocks([3])
    manager.pop_blocks_for_free(a)
    equal(manager.snapshot().popped_blocks, (1, 2, 3, 3))
    manager.free_blocks([3, 2, 1])
    equal(manager.queue(), [5])
    manager.free_blocks([3])
    equal(manager.queue(), [3, 5])


@example("KV-POOL-19", level=Level.IDENTITY)
def a_held_block_keeps_its_keys_and_its_request_goes(bench: Bench) -> None:
    """It is hit after its request is gone, and evicted by id while it is held."""
    manager, a, b = bench.story()
    manager.hold_blocks([2])
    manager.free(a)
    manager.free(b)
    equal(manager.hit(a), [1, 2])
    equal(manager.queue(), [4, 3, 5, 1])
    manager.evict_blocks([2])
    equal(manager.hit(a), [1])
    manager.free_blocks([2])
    equal(manager.queue(), [2, 4, 3, 5, 1])


@example("KV-POOL-19", "KV-POOL-11")
def nothing_is_reset_while_a_block_is_held(bench: Bench) -> None:
    """Neither a cached block nor one without a key may be in use."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.free(b)
    for block in (1, 5):
        manager.hold_blocks([block])
        equal(manager.reset_prefix_cache(), False)
        manager.free_blocks([block])
    equal(manager.reset_prefix_cache(), True)


@cases(-1, 6, True, 1.0, None, "1")
@example("KV-POOL-19", "KV-ERR-3", level=Level.SAFETY)
def what_is_no_block_is_not_held(bench: Bench, bad: Any) -> None:
    """The legal ids before it are not held either."""
    manager = bench.story()[0]
    with manager.refuses(UnknownBlockError):
        manager.hold_blocks([1, 5, bad])
    with manager.refuses(UnknownBlockError):
        manager.get_block(bad)


@example("KV-POOL-21", "KV-POOL-19", level=Level.IDENTITY, since="0.3")
def holds_are_counted_or_refused(bench: Bench) -> None:
    """Block 3, which a request has, is held 65,536 times; one more may be refused."""
    manager = bench.story()[0]
    manager.hold_blocks([3] * 65_535)
    manager.hold_blocks([0, 3])
    equal(manager.references()[3], 65_537)
    try:
        manager.hold_blocks([5, 3])
    except InvalidArgumentError as error:
        equal((error.field, manager.references().get(5)), ("block_ids", None))
    else:
        equal(manager.references()[3], 65_538)
        manager.free_blocks([3, 5])
    manager.free_blocks([3] * 65_536)
    equal(manager.references()[3], 1)


@example("KV-POOL-19", "KV-FULL-8", level=Level.SAFETY)
def what_is_set_aside_is_not_held(bench: Bench) -> None:
    """Block 1 of an attention sink is in nobody's hands."""
    manager = bench.manager(6, SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=4))
    with manager.refuses(InvalidArgumentError, field="block_ids"):
        manager.hold_blocks([2, 1])
    manager.hold_blocks([2])


@example("KV-POOL-19", "KV-STAT-6", level=Level.IDENTITY)
def holding_is_a_touch(bench: Bench) -> None:
    """Taken at 0, held at 10 and 30, taken again at 60: idle since 30, a gap of 20."""
    now = [0]
    manager = bench.manager(3, clock=lambda: now[0], residency_sample_rate=1.0)
    request = manager.started("a", [1, 2, 3])
    for time in (10, 30):
        now[0] = time
        manager.hold_blocks([1])
    manager.free(request)
    manager.free_blocks([1, 1])
    now[0] = 60
    manager.started("b", range(20, 25))
    (sample,) = manager.take_residency_samples()
    equal((sample.lifetime_ns, sample.idle_ns, tuple(sample.reuse_gaps_ns)), (60, 30, (20,)))


@example("KV-POOL-20", level=Level.IDENTITY)
def facts_are_references_hash_and_group(bench: Bench) -> None:
    """Null, two cached blocks, an unhashed one, and free ones with and without a hash."""
    manager, a, b = bench.story()
    before = manager.everything()
    equal(manager.get_block(0), BlockFacts(0, None, None))
    equal(manager.get_block(1), BlockFacts(2, HASH_0, 0))
    equal(manager.get_block(2), BlockFacts(2, HASH_1, 0))
    equal(manager.get_block(3), BlockFacts(1, None, None))
    equal(manager.get_block(5), BlockFacts(0, None, None))
    holds(manager.get_block(2).is_cached and not manager.get_block(3).is_cached)
    equal(manager.everything().snapshot, before.snapshot)
    manager.free(a)
    manager.free(b)
    equal(manager.get_block(1), BlockFacts(0, HASH_0, 0))


@example("KV-POOL-20", level=Level.IDENTITY)
def facts_name_the_group_and_the_primary_key(bench: Bench) -> None:
    """Blocks of two groups; then a block cached up to 8 of its 12 tokens, and up to 4."""
    manager = bench.manager(8, full(8), full(4, head_size=16))
    request = manager.started("r", range(1, 9))
    ((first,), (second, third)) = manager.lists(request)
    equal(manager.get_block(first), BlockFacts(1, HASH_1, 0))
    equal(manager.get_block(second), BlockFacts(1, HASH_0, 1))
    equal(manager.get_block(third), BlockFacts(1, HASH_1, 1))
    manager = bench.manager(8, full(12), full(4, head_size=16))
    request = manager.started("s", range(1, 12))
    block = manager.blocks(request)[0]
    for num_tokens in (8, 4):
        equal(manager.cache_partial_block(request, 0, num_tokens), True)
    equal(manager.get_block(block), BlockFacts(1, HASH_1, 0))
