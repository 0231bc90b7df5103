"""KV-MGR: looking up, freeing, asking. Allocation is in test_manager_allocation.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import BlockReleaseError, InvalidArgumentError, UnknownBlockError
from kvspec.interface import Implementation
from kvspec.request import RequestStatus
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    cached_blocks,
    cached_count,
    everything,
    full,
    hit_of,
    preempt,
    queue_of,
    run_on,
)

# Looking up.


@pytest.mark.rule("KV-MGR-1")
@pytest.mark.parametrize(("num_tokens", "hit"), [(8, [1]), (9, [1, 2]), (4, []), (1, [])])
def test_the_last_token_never_hits(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int, hit: list[int]
) -> None:
    """8 tokens with both blocks cached hit one block, 9 tokens two."""
    manager = make_manager(6, 4)
    admit(manager, make_request(manager, "first", range(1, 9)))
    request = make_request(manager, "r", range(1, num_tokens + 1))
    request.num_computed_tokens = 3  # does not matter, nor does the status
    request.status = RequestStatus.PREEMPTED
    assert hit_of(manager, request) == hit


@pytest.mark.rule("KV-MGR-2", "KV-POOL-5")
def test_a_look_up_changes_statistics_only(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Block 1 is free and cached: the answer is 1, the queue still holds it, asked twice too."""
    manager = make_manager(6, 4, log_stats=True, enable_events=True, residency_sample_rate=1.0)
    first = make_request(manager, "first", range(1, 5))
    admit(manager, first)
    manager.free(first)
    asker = make_request(manager, "r", range(1, 9))
    before = everything(manager)
    expected = PrefixHit(KVCacheBlocks(((1,),)), 4)
    assert [manager.get_computed_blocks(asker) for _ in range(2)] == [expected, expected]
    after = everything(manager)
    assert after.snapshot == before.snapshot
    assert 1 in after.snapshot.free_queue
    assert (after.events, after.samples) == ((), ())


@pytest.mark.rule("KV-MGR-2", "KV-STAT-1")
def test_a_request_that_skips_reading_is_not_counted_but_cached(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Its look-up is empty; its blocks are hits of others all the same."""
    manager = make_manager(6, 4, log_stats=True)
    skipper = make_request(manager, "skipper", range(8), skip_reading_cache=True)
    admit(manager, skipper)
    assert cached_blocks(manager) == {1, 2}
    assert manager.get_computed_blocks(skipper) == PrefixHit(KVCacheBlocks(((),)), 0)
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert stats.requests == stats.queries_tokens == 0
    assert hit_of(manager, make_request(manager, "r", range(9))) == [1, 2]


# Caching.


@pytest.mark.rule("KV-MGR-11", "KV-GRP-11")
def test_a_delayed_load_is_cached_when_it_arrived(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Of 8 tokens in blocks 1 and 2, 6 cache only block 1, 8 both, and 8 again nothing more."""
    manager = make_manager(6, 4, enable_events=True)
    request = make_request(manager, "r", range(9))
    manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    assert cached_blocks(manager) == set()
    for num_tokens, cached, events in ((6, {1}, 1), (8, {1, 2}, 1), (8, {1, 2}, 0), (4, {1, 2}, 0)):
        manager.cache_blocks(request, num_tokens)
        assert cached_blocks(manager) == cached
        assert len(manager.take_events()) == events


@pytest.mark.rule("KV-MGR-11")
@pytest.mark.parametrize("bad", [11, 13, -1, True, 4.0, None, "4", 2**63])
def test_only_tokens_with_slots_can_be_cached(story: Story, bad: int) -> None:
    """Request a has 10 tokens: 11 are too many."""
    before = story.manager.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.cache_blocks(story.a, bad)
    assert caught.value.field == "num_computed_tokens"
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-MGR-11")
def test_tokens_beyond_the_slots_cannot_be_cached(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request of 12 tokens that holds one block of 4 can have 4 of them cached."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(12))
    manager.allocate_slots(request, 4, delay_cache_blocks=True)
    with pytest.raises(InvalidArgumentError):
        manager.cache_blocks(request, 5)
    manager.cache_blocks(request, 4)
    assert cached_count(manager, request) == 1


@pytest.mark.rule("KV-MGR-11", "KV-ERR-4", "KV-COORD-1")
@pytest.mark.parametrize("caching", [True, False])
def test_caching_for_an_unknown_request_does_nothing(
    make_manager: MakeManager, make_request: MakeRequest, caching: bool
) -> None:
    """A request that holds nothing is no error, with caching on or off."""
    manager = make_manager(6, 4, enable_caching=caching)
    manager.cache_blocks(make_request(manager, "r", range(9)), 8)
    assert manager.snapshot() == make_manager(6, 4).snapshot()


# Releasing.


@pytest.mark.rule("KV-MGR-12", "KV-ERR-4", "KV-POOL-8")
def test_free_releases_and_forgets(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """List 1, 2, 3 with 1 and 2 cached: the queue 4, 5 becomes 3, 4, 5, 2, 1; again: nothing."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(10))
    admit(manager, request)
    assert queue_of(manager) == [4, 5]
    manager.free(request)
    assert queue_of(manager) == [3, 4, 5, 2, 1]
    after = manager.snapshot()
    assert after.requests == {}
    manager.free(request)
    assert manager.snapshot() == after


@pytest.mark.rule("KV-MGR-13", "KV-POOL-7")
def test_popped_blocks_come_back_later(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Popping leaves the queue 4, 5; blocks 1 and 2 can still be hit; then 3, 4, 5, 2, 1."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(10))
    admit(manager, request)
    assert manager.pop_blocks_for_free(request) == (1, 2, 3)
    assert queue_of(manager) == [4, 5]
    assert manager.get_blocks(request) == KVCacheBlocks(((),))
    assert manager.pop_blocks_for_free(request) == ()
    assert hit_of(manager, make_request(manager, "s", range(10))) == [1, 2]
    manager.free_blocks([3, 2, 1])
    assert queue_of(manager) == [3, 4, 5, 2, 1]


@pytest.mark.rule("KV-MGR-13")
def test_popped_blocks_may_come_back_in_parts(story: Story) -> None:
    """The blocks of a return in two calls; what is not a block, or was returned, is an error."""
    manager = story.manager
    manager.pop_blocks_for_free(story.a)
    manager.free_blocks([3])
    assert manager.snapshot().popped_blocks == (1, 2)
    for blocks, error in (([2, 6], UnknownBlockError), ([2, 3], BlockReleaseError)):
        with pytest.raises(error):
            manager.free_blocks(blocks)
    manager.free_blocks([2, 1])
    assert manager.snapshot().popped_blocks == ()


@pytest.mark.rule("KV-MGR-13")
def test_the_groups_are_concatenated(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """The lists of two groups come one after another, each in list order."""
    manager = make_manager(10, 8, specs=[full(8), full(4)], enable_caching=False)
    request = make_request(manager, "r", range(16))
    admit(manager, request, 8)
    run_on(manager, request, 8)
    assert manager.get_blocks(request).to_lists() == [[1, 4], [2, 3, 5, 6]]
    assert manager.pop_blocks_for_free(request) == (1, 4, 2, 3, 5, 6)
    manager.free_blocks([6, 5, 3, 2, 4, 1])
    assert queue_of(manager) == [6, 5, 3, 2, 4, 1, 7, 8, 9]


@pytest.mark.rule("KV-MGR-14")
@pytest.mark.parametrize("bad", [-1, True, 1.0, None, "1", 2**63])
def test_computed_tokens_are_counted_from_zero(story: Story, bad: int) -> None:
    """What is no int of at least 0 is refused."""
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.remove_skipped_blocks(story.a, bad)
    assert caught.value.field == "total_computed_tokens"


@pytest.mark.rule("KV-MGR-17", "KV-STAT-2")
def test_a_resumed_request_hits_what_survived(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """13 tokens in 1, 2, 3, 4: the queue becomes 4, 5, 3, 2, 1; after two were taken 12 hit."""
    manager = make_manager(6, 4, log_stats=True)
    request = make_request(manager, "r", range(10))
    admit(manager, request)
    implementation.append_tokens(manager, request, [10, 11, 12])
    run_on(manager, request, 3)
    assert blocks_of(manager, request) == [1, 2, 3, 4]
    preempt(manager, request)
    assert queue_of(manager) == [4, 5, 3, 2, 1]
    other = make_request(manager, "other", range(50, 56))
    admit(manager, other)
    assert blocks_of(manager, other) == [4, 5]
    manager.make_prefix_cache_stats()
    hit = manager.get_computed_blocks(request)
    assert hit == PrefixHit(KVCacheBlocks(((1, 2, 3),)), 12)
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert (stats.requests, stats.preempted_hits_tokens) == (0, 12)


# Asking.


@pytest.mark.rule("KV-MGR-15", "KV-ERR-4")
def test_the_common_prefix_is_told_per_group(story: Story, make_request: MakeRequest) -> None:
    """(2,) for a and for b; (0,) for a request that the manager does not know; nothing changes."""
    manager = story.manager
    before = manager.snapshot()
    stranger = make_request(manager, "stranger", range(1, 9))
    answers = [manager.get_num_common_prefix_blocks(r) for r in (story.a, story.b, stranger)]
    assert answers == [(2,), (2,), (0,)]
    assert manager.snapshot() == before


@pytest.mark.rule("KV-MGR-16")
def test_ids_for_zeroing_are_told_once(story: Story) -> None:
    """1, 2, 3 of one request and 4 of another, then nothing."""
    assert story.manager.take_new_block_ids() == (1, 2, 3, 4)
    assert story.manager.take_new_block_ids() == ()


@pytest.mark.rule("KV-MGR-18")
def test_the_need_is_what_an_allocation_takes(story: Story, make_request: MakeRequest) -> None:
    """A new request that hits two blocks, one of them free, and takes one new needs 2."""
    manager = story.manager
    manager.free(story.a)
    manager.pop_blocks_for_free(story.b)
    manager.free_blocks([2])
    assert queue_of(manager) == [3, 5, 2]
    request = make_request(manager, "c", [*range(1, 9), 40])
    need = manager.get_num_blocks_to_allocate(
        request, num_tokens=13, total_computed_tokens=0, num_tokens_main_model=13
    )
    assert need == 4
    admit(manager, request)
    assert blocks_of(manager, request) == [1, 2, 3]
    assert queue_of(manager) == [5]


@pytest.mark.rule("KV-MGR-18")
@given(held=st.integers(0, 12), num_tokens=st.integers(1, 40), caching=st.booleans())
@settings(max_examples=40)
def test_the_need_is_pure_and_exact(
    make_manager: MakeManager,
    make_request: MakeRequest,
    held: int,
    num_tokens: int,
    caching: bool,
) -> None:
    """Asking changes nothing, and an allocation up to as many slots takes exactly the answer."""
    manager = make_manager(12, 4, enable_caching=caching)
    request = make_request(manager, "r", range(50))
    if held:
        admit(manager, request, held)
    before = manager.snapshot()
    need = manager.get_num_blocks_to_allocate(
        request,
        num_tokens=num_tokens,
        total_computed_tokens=held,
        num_tokens_main_model=num_tokens,
    )
    assert manager.snapshot() == before
    free = manager.num_free_blocks
    if num_tokens > held:
        assert run_on(manager, request, num_tokens - held) is not None
        assert free - manager.num_free_blocks == need
    else:
        assert need == 0


@pytest.mark.rule("KV-MGR-18")
@pytest.mark.parametrize(
    "name", ["num_tokens", "total_computed_tokens", "num_tokens_main_model", "num_encoder_tokens"]
)
@pytest.mark.parametrize("bad", [-1, True, 1.0, None, "1", 2**63])
def test_the_need_is_asked_for_with_counts(story: Story, name: str, bad: object) -> None:
    """What is no int of at least 0 is refused, and the error names the argument."""
    arguments: dict[str, object] = {
        "num_tokens": 9,
        "total_computed_tokens": 0,
        "num_tokens_main_model": 9,
        name: bad,
    }
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.get_num_blocks_to_allocate(story.a, **arguments)  # type: ignore[arg-type]  # the point of the test
    assert caught.value.field == name


@pytest.mark.rule("KV-MGR-19")
def test_a_new_step_changes_nothing_for_full_attention(story: Story) -> None:
    """The snapshot before and after is the same."""
    before = story.manager.snapshot()
    story.manager.new_step_starts()
    assert story.manager.snapshot() == before
