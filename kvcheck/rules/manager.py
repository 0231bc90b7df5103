"""KV-MGR: looking up, freeing, asking. Allocation is in manager_allocation.py."""

from __future__ import annotations

from itertools import product

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.specs import full
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import BlockReleaseError, InvalidArgumentError, UnknownBlockError
from kvspec.request import RequestStatus

# Looking up.


@cases((8, [1]), (9, [1, 2]), (4, []), (1, []))
@example("KV-MGR-1")
def the_last_token_never_hits(bench: Bench, num_tokens: int, hit: list[int]) -> None:
    """8 tokens with both blocks cached hit one block, 9 tokens two."""
    manager = bench.manager(6)
    manager.admit(manager.request("first", range(1, 9)))
    request = manager.request("r", range(1, num_tokens + 1))
    request.num_computed_tokens = 3  # does not matter, nor does the status
    request.status = RequestStatus.PREEMPTED
    manager.same(manager.hit(request), hit)


@example("KV-MGR-2", "KV-POOL-5", level=Level.IDENTITY)
def a_look_up_changes_statistics_only(bench: Bench) -> None:
    """Block 1 is free and cached: the answer is 1, the queue still holds it, asked twice too."""
    manager = bench.manager(6, log_stats=True, enable_events=True, residency_sample_rate=1.0)
    first = manager.started("first", range(1, 5))
    manager.free(first)
    asker = manager.request("r", range(1, 9))
    before = manager.everything()
    expected = PrefixHit(KVCacheBlocks(((1,),)), 4)
    equal([manager.get_computed_blocks(asker) for _ in range(2)], [expected, expected])
    after = manager.everything()
    equal(after.snapshot, before.snapshot)
    holds(1 in after.snapshot.free_queue)
    equal((after.events, after.samples), ((), ()))


@example("KV-MGR-2", "KV-STAT-1")
def a_request_that_skips_reading_is_not_counted_but_cached(bench: Bench) -> None:
    """Its look-up is empty; its blocks are hits of others all the same."""
    manager = bench.manager(6, log_stats=True)
    skipper = manager.started("skipper", range(8), skip_reading_cache=True)
    equal(manager.cached_positions(skipper), [0, 1])
    equal(manager.get_computed_blocks(skipper), PrefixHit(KVCacheBlocks(((),)), 0))
    stats = manager.make_prefix_cache_stats()
    holds(stats is not None)
    holds(stats.requests == stats.queries_tokens == 0)
    manager.same(manager.hit(manager.request("r", range(9))), [1, 2])


# Caching.


@example("KV-MGR-11", "KV-GRP-11", level=Level.IDENTITY)
def a_delayed_load_is_cached_when_it_arrived(bench: Bench) -> None:
    """Of 8 tokens in blocks 1 and 2, 6 cache only block 1, 8 both, and 8 again nothing more."""
    manager = bench.manager(6, enable_events=True)
    request = manager.request("r", range(9))
    manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    equal(manager.cached(), set())
    for num_tokens, cached, events in ((6, {1}, 1), (8, {1, 2}, 1), (8, {1, 2}, 0), (4, {1, 2}, 0)):
        manager.cache_blocks(request, num_tokens)
        equal(manager.cached(), cached)
        equal(len(manager.take_events()), events)


@cases(11, 13, -1, True, 4.0, None, "4", 2**63)
@example("KV-MGR-11", level=Level.SAFETY)
def only_tokens_with_slots_can_be_cached(bench: Bench, bad: int) -> None:
    """Request a has 10 tokens: 11 and 13 are too many, unless what is beyond is cut."""
    if bad in (11, 13):
        bench.need_usual("caching_beyond_tokens")
    manager, a, _ = bench.story()
    with manager.refuses(InvalidArgumentError, field="num_computed_tokens"):
        manager.cache_blocks(a, bad)


@example("KV-MGR-11")
def tokens_beyond_the_slots_cannot_be_cached(bench: Bench) -> None:
    """A request of 12 tokens that holds one block of 4 can have 4 of them cached."""
    manager = bench.manager(6)
    request = manager.request("r", range(12))
    manager.allocate_slots(request, 4, delay_cache_blocks=True)
    with manager.refuses(InvalidArgumentError):
        manager.cache_blocks(request, 5)
    manager.cache_blocks(request, 4)
    equal(manager.cached_count(request), 1)


@cases(True, False)
@example("KV-MGR-11", "KV-ERR-4", "KV-COORD-1")
def caching_for_an_unknown_request_does_nothing(bench: Bench, caching: bool) -> None:
    """A request that holds nothing is no error, with caching on or off."""
    manager = bench.manager(6, enable_caching=caching)
    manager.cache_blocks(manager.request("r", range(9)), 8)
    equal(manager.visible(), bench.manager(6).visible())


# Releasing.


@example("KV-MGR-12", "KV-ERR-4", "KV-POOL-8", level=Level.IDENTITY)
def free_releases_and_forgets(bench: Bench) -> None:
    """List 1, 2, 3 with 1 and 2 cached: the queue 4, 5 becomes 3, 4, 5, 2, 1; again: nothing."""
    manager = bench.manager(6)
    request = manager.started("r", range(10))
    equal(manager.queue(), [4, 5])
    manager.free(request)
    equal(manager.queue(), [3, 4, 5, 2, 1])
    after = manager.snapshot()
    equal(after.requests, {})
    manager.free(request)
    equal(manager.snapshot(), after)


@example("KV-MGR-13", "KV-POOL-7", level=Level.IDENTITY)
def popped_blocks_come_back_when_they_are_returned(bench: Bench) -> None:
    """Popping leaves the queue 4, 5; blocks 1 and 2 can still be hit; then 3, 4, 5, 2, 1."""
    manager = bench.manager(6)
    request = manager.started("r", range(10))
    equal(manager.pop_blocks_for_free(request), (1, 2, 3))
    equal(manager.queue(), [4, 5])
    equal(manager.get_blocks(request), KVCacheBlocks(((),)))
    equal(manager.pop_blocks_for_free(request), ())
    equal(manager.hit(manager.request("s", range(10))), [1, 2])
    manager.free_blocks([3, 2, 1])
    equal(manager.queue(), [3, 4, 5, 2, 1])


@example("KV-MGR-13", level=Level.IDENTITY)
def popped_blocks_may_come_back_in_parts(bench: Bench) -> None:
    """The blocks of a return in two calls; what is not a block, or was returned, is an error."""
    manager, a, _ = bench.story()
    manager.pop_blocks_for_free(a)
    manager.free_blocks([3])
    equal(manager.snapshot().popped_blocks, (1, 2))
    for blocks, error in (([2, 6], UnknownBlockError), ([2, 3], BlockReleaseError)):
        with manager.refuses(error):
            manager.free_blocks(blocks)
    manager.free_blocks([2, 1])
    equal(manager.snapshot().popped_blocks, ())


@example("KV-MGR-13", level=Level.IDENTITY)
def the_groups_are_concatenated(bench: Bench) -> None:
    """The lists of two groups come one after another, each in list order."""
    manager = bench.manager(10, full(8), full(4), enable_caching=False)
    request = manager.request("r", range(16))
    manager.admit(request, 8)
    manager.run(request, 8)
    equal(manager.get_blocks(request).to_lists(), [[1, 4], [2, 3, 5, 6]])
    equal(manager.pop_blocks_for_free(request), (1, 4, 2, 3, 5, 6))
    manager.free_blocks([6, 5, 3, 2, 4, 1])
    equal(manager.queue(), [6, 5, 3, 2, 4, 1, 7, 8, 9])


@cases(-1, True, 1.0, None, "1", 2**63)
@example("KV-MGR-14", level=Level.SAFETY)
def computed_tokens_are_counted_from_zero(bench: Bench, bad: int) -> None:
    """What is no int of at least 0 is refused."""
    manager, a, _ = bench.story()
    with manager.refuses(InvalidArgumentError, field="total_computed_tokens"):
        manager.remove_skipped_blocks(a, bad)


@example("KV-MGR-17", "KV-STAT-2", level=Level.IDENTITY)
def a_resumed_request_hits_what_survived(bench: Bench) -> None:
    """13 tokens in 1, 2, 3, 4: the queue becomes 4, 5, 3, 2, 1; after two were taken 12 hit."""
    manager = bench.manager(6, log_stats=True)
    request = manager.started("r", range(10))
    manager.append(request, [10, 11, 12])
    manager.run(request, 3)
    equal(manager.blocks(request), [1, 2, 3, 4])
    manager.preempt(request)
    equal(manager.queue(), [4, 5, 3, 2, 1])
    other = manager.started("other", range(50, 56))
    equal(manager.blocks(other), [4, 5])
    manager.make_prefix_cache_stats()
    hit = manager.look_up(request)
    equal(hit, PrefixHit(KVCacheBlocks(((1, 2, 3),)), 12))
    stats = manager.make_prefix_cache_stats()
    holds(stats is not None)
    equal((stats.requests, stats.preempted_hits_tokens), (0, 12))


# Asking.


@example("KV-MGR-15", "KV-ERR-4", choices=("counts_common_prefix",))
def the_common_prefix_is_told_per_group(bench: Bench) -> None:
    """(2,) for a and for b; (0,) for a request that the manager does not know; nothing changes."""
    manager, a, b = bench.story()
    before = manager.visible()
    stranger = manager.request("stranger", range(1, 9))
    answers = [manager.get_num_common_prefix_blocks(r) for r in (a, b, stranger)]
    equal(answers, [(2,), (2,), (0,)])
    equal(manager.visible(), before)


@example("KV-MGR-16", choices=("zeroed_blocks",))
def ids_for_zeroing_are_told_once(bench: Bench) -> None:
    """1, 2, 3 of one request and 4 of another, then nothing."""
    manager = bench.story()[0]
    manager.same(manager.take_new_block_ids(), (1, 2, 3, 4))
    equal(manager.take_new_block_ids(), ())


@example("KV-MGR-18", level=Level.IDENTITY)
def the_need_is_what_an_allocation_takes(bench: Bench) -> None:
    """A new request that hits two blocks, one of them free, and takes one new needs 2."""
    manager, a, b = bench.story()
    manager.free(a)
    manager.pop_blocks_for_free(b)
    manager.free_blocks([2])
    equal(manager.queue(), [3, 5, 2])
    request = manager.request("c", [*range(1, 9), 40])
    need = manager.get_num_blocks_to_allocate(
        request, num_tokens=13, total_computed_tokens=0, num_tokens_main_model=13
    )
    equal(need, 4)
    manager.admit(request)
    equal(manager.blocks(request), [1, 2, 3])
    equal(manager.queue(), [5])


@cases(
    *product(
        ["num_tokens", "total_computed_tokens", "num_tokens_main_model", "num_encoder_tokens"],
        [-1, True, 1.0, None, "1", 2**63],
    )
)
@example("KV-MGR-18", level=Level.SAFETY)
def the_need_is_asked_for_with_counts(bench: Bench, name: str, bad: object) -> None:
    """What is no int of at least 0 is refused, and the error names the argument."""
    manager, a, _ = bench.story()
    arguments: dict[str, object] = {
        "num_tokens": 9,
        "total_computed_tokens": 0,
        "num_tokens_main_model": 9,
        name: bad,
    }
    with manager.refuses(InvalidArgumentError, field=name):
        manager.get_num_blocks_to_allocate(a, **arguments)


@example("KV-MGR-19")
def a_new_step_changes_nothing_for_full_attention(bench: Bench) -> None:
    """The snapshot before and after is the same."""
    manager = bench.story()[0]
    before = manager.visible()
    manager.new_step_starts()
    equal(manager.visible(), before)
