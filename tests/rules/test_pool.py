"""KV-POOL: the free queue and references. Cached identity is in test_pool_cache.py."""

from __future__ import annotations

import pytest

from kvspec.errors import BlockReleaseError
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    cached_blocks,
    full,
    hit_of,
    queue_of,
    references,
)

# Taking blocks.


@pytest.mark.rule("KV-POOL-1")
def test_the_null_block_is_never_given_away(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A pool of 6 blocks has 5 to give away, and block 0 has no references and no keys."""
    manager = make_manager(6, 4)
    assert manager.num_free_blocks == 5
    admit(manager, make_request(manager, "r", range(20)))
    snapshot = manager.snapshot()
    assert snapshot.free_queue == ()
    assert snapshot.ref_counts == (0, 1, 1, 1, 1, 1)
    assert snapshot.block_keys[0] == ()


@pytest.mark.rule("KV-POOL-1", "KV-POOL-9", "KV-POOL-10")
def test_a_release_and_an_eviction_pass_over_null(story: Story) -> None:
    """Returning [0, 3, 0] returns block 3; evicting block 0 does nothing."""
    manager = story.manager
    manager.pop_blocks_for_free(story.a)
    manager.free_blocks([0, 3, 0])
    assert queue_of(manager) == [3, 5]
    before = manager.snapshot()
    manager.evict_blocks([0])
    assert manager.snapshot() == before


@pytest.mark.rule("KV-POOL-2")
def test_blocks_are_first_taken_in_the_order_of_their_ids(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The queue starts as 1, 2, 3, 4, 5, and the first request gets block 1."""
    manager = make_manager(6, 4)
    assert queue_of(manager) == [1, 2, 3, 4, 5]
    request = make_request(manager, "r", [7])
    admit(manager, request)
    assert blocks_of(manager, request) == [1]


@pytest.mark.rule("KV-POOL-3")
def test_blocks_are_taken_from_the_front_or_not_at_all(
    story: Story, make_request: MakeRequest
) -> None:
    """From the queue 4, 3, 5, 2, 1 two blocks are 4 and 3; six are refused."""
    manager = story.manager
    manager.free(story.a)
    manager.free(story.b)
    assert queue_of(manager) == [4, 3, 5, 2, 1]
    before = manager.snapshot()
    assert admit(manager, make_request(manager, "c", range(50, 74))) is None
    assert manager.snapshot() == before
    request = make_request(manager, "d", range(50, 58))
    admit(manager, request)
    assert blocks_of(manager, request) == [4, 3]
    assert references(manager) == {4: 1, 3: 1}
    assert queue_of(manager) == [5, 2, 1]


@pytest.mark.rule("KV-POOL-4")
def test_a_cached_block_that_is_taken_loses_its_keys(
    story: Story, make_request: MakeRequest
) -> None:
    """A request that takes 4, 3, 5, 2 evicts block 2, and a look-up then ends after block 1."""
    manager = story.manager
    manager.free(story.a)
    manager.free(story.b)
    taker = make_request(manager, "c", range(50, 66))
    manager.allocate_slots(taker, 16, delay_cache_blocks=True)
    assert blocks_of(manager, taker) == [4, 3, 5, 2]
    assert cached_blocks(manager) == {1}
    assert hit_of(manager, story.a) == [1]


@pytest.mark.rule("KV-POOL-5")
def test_touching_takes_a_free_block_out_of_the_queue(
    story: Story, make_request: MakeRequest
) -> None:
    """From the queue 4, 3, 5, 2, 1 touching 1 and 2 leaves 4, 3, 5."""
    manager = story.manager
    manager.free(story.a)
    manager.free(story.b)
    request = make_request(manager, "c", [*range(1, 9), 30])
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(
        request,
        0,
        num_new_computed_tokens=8,
        new_computed_blocks=hit.blocks,
        num_external_computed_tokens=1,
    )
    assert blocks_of(manager, request) == [1, 2, 4]
    assert queue_of(manager) == [3, 5]
    assert references(manager) == {1: 1, 2: 1, 4: 1}


@pytest.mark.rule("KV-POOL-5")
def test_touching_a_block_in_use_adds_a_reference(story: Story) -> None:
    """Blocks 1 and 2 were hit by b while a held them: two references each."""
    assert references(story.manager) == {1: 2, 2: 2, 3: 1, 4: 1}
    assert queue_of(story.manager) == [5]


# Releasing blocks.


@pytest.mark.rule("KV-POOL-6", "KV-POOL-8")
def test_unhashed_blocks_go_to_the_front_and_cached_ones_to_the_back(story: Story) -> None:
    """The queue 5 becomes 3, 5 after the release of a, and 4, 3, 5, 2, 1 after that of b."""
    manager = story.manager
    manager.free(story.a)
    assert queue_of(manager) == [3, 5]
    manager.free(story.b)
    assert queue_of(manager) == [4, 3, 5, 2, 1]


@pytest.mark.rule("KV-POOL-6")
def test_unhashed_blocks_of_one_call_stay_in_list_order(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Releasing two unhashed blocks in one call as [3, 4] puts 3 before 4."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(16))
    manager.allocate_slots(request, 16, delay_cache_blocks=True)
    manager.pop_blocks_for_free(request)
    manager.free_blocks([3, 4])
    assert queue_of(manager) == [3, 4, 5]


@pytest.mark.rule("KV-POOL-6")
def test_cached_is_what_is_cached_at_the_moment_of_the_call(story: Story) -> None:
    """Block 2 was cached when it was taken into the list, but not when it is released."""
    manager = story.manager
    manager.free(story.b)
    manager.evict_blocks([2])
    manager.free(story.a)
    assert queue_of(manager) == [3, 2, 4, 5, 1]


@pytest.mark.rule("KV-POOL-7", "KV-COORD-1")
def test_each_group_is_released_in_a_call_of_its_own(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Two calls, [3, 2, 1] and [6, 5, 4]: the run of the later group lands in front."""
    manager = make_manager(10, 8, specs=[full(8), full(8)], enable_caching=False)
    request = make_request(manager, "r", range(20))
    admit(manager, request)
    assert manager.get_blocks(request).to_lists() == [[1, 2, 3], [4, 5, 6]]
    manager.free(request)
    assert queue_of(manager) == [6, 5, 4, 3, 2, 1, 7, 8, 9]


@pytest.mark.rule("KV-POOL-7", "KV-MGR-12", "KV-MGR-13")
@pytest.mark.parametrize(("deferred", "queue"), [(False, [5, 2, 1, 4, 3]), (True, [5, 4, 3, 2, 1])])
def test_the_cut_into_calls_shows_in_the_order_of_cached_blocks(
    make_manager: MakeManager, make_request: MakeRequest, deferred: bool, queue: list[int]
) -> None:
    """Cached 1, 2 in group 0 and 3, 4 in group 1: calls [2, 1] and [4, 3], or [4, 3, 2, 1]."""
    manager = make_manager(6, 4, specs=[full(4), full(4, head_size=16)])
    request = make_request(manager, "r", range(8))
    admit(manager, request)
    assert manager.get_blocks(request).to_lists() == [[1, 2], [3, 4]]
    assert queue_of(manager) == [5]
    if deferred:
        manager.free_blocks(manager.pop_blocks_for_free(request)[::-1])
    else:
        manager.free(request)
    assert queue_of(manager) == queue


@pytest.mark.rule("KV-POOL-7", "KV-MGR-13")
def test_a_deferred_free_is_one_call(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Blocks returned in one call form one run, those of two calls two."""
    queues = []
    for calls in ([[3, 2, 1]], [[3, 2], [1]]):
        manager = make_manager(6, 4)
        request = make_request(manager, "r", range(12))
        manager.allocate_slots(request, 12, delay_cache_blocks=True)
        manager.pop_blocks_for_free(request)
        for call in calls:
            manager.free_blocks(call)
        queues.append(queue_of(manager))
    assert queues == [[3, 2, 1, 4, 5], [1, 3, 2, 4, 5]]


@pytest.mark.rule("KV-POOL-8")
def test_the_last_block_of_a_request_is_evicted_first(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The release call of the list 1, 2, 3 is [3, 2, 1]: block 3 comes before 2 and 1."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(12))
    admit(manager, request)
    manager.free(request)
    assert queue_of(manager) == [4, 5, 3, 2, 1]


@pytest.mark.rule("KV-POOL-9", "KV-ERR-2")
@pytest.mark.parametrize(
    ("blocks", "block", "released", "held"),
    [([1, 1], 1, 2, 1), ([3, 2, 1, 3], 3, 2, 1), ([4], 4, 1, 0), ([5], 5, 1, 0)],
)
def test_only_popped_references_can_be_returned(
    story: Story,
    blocks: list[int],
    block: int,
    released: int,
    held: int,
) -> None:
    """Block 1 has two references, but only one was popped; b's own blocks were not at all."""
    manager = story.manager
    manager.pop_blocks_for_free(story.a)
    before = manager.snapshot()
    with pytest.raises(BlockReleaseError) as caught:
        manager.free_blocks(blocks)
    assert (caught.value.block_id, caught.value.released, caught.value.held) == (
        block,
        released,
        held,
    )
    assert manager.snapshot() == before


@pytest.mark.rule("KV-POOL-9")
def test_a_returned_reference_is_gone(story: Story) -> None:
    """After [3, 2, 1] came back, returning 3 once more is an error."""
    manager = story.manager
    manager.pop_blocks_for_free(story.a)
    manager.free_blocks([3, 2, 1])
    with pytest.raises(BlockReleaseError):
        manager.free_blocks([3])


@pytest.mark.rule("KV-POOL-12")
def test_usage_is_the_share_of_blocks_in_use(story: Story, make_manager: MakeManager) -> None:
    """Four of five blocks are in use: 1 - 1/5; none of five, or none there to use: 0.0."""
    assert story.manager.usage == 1.0 - 1 / 5
    assert make_manager(6, 4).usage == 0.0
    assert make_manager(1, 4).usage == 0.0


@pytest.mark.rule("KV-POOL-12")
def test_usage_is_computed_in_double_arithmetic(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """49 of 50 blocks free: 1.0 - 49 / 50, which is not the double nearest to 0.02."""
    manager = make_manager(51, 4)
    admit(manager, make_request(manager, "r", [1]))
    assert manager.usage == 1.0 - 49 / 50
    assert manager.usage != 0.02


# What always holds; kvspec.invariants checks it after every call of every test besides.


@pytest.mark.rule("KV-POOL-15")
def test_every_block_is_free_or_in_use(story: Story) -> None:
    """While a and b run: free 5; in use 1, 2, 3, 4; together all but the null block."""
    snapshot = story.manager.snapshot()
    in_use = set(references(story.manager))
    assert set(snapshot.free_queue) == {5}
    assert in_use == {1, 2, 3, 4}
    assert len(snapshot.free_queue) + len(in_use) + len(snapshot.reserved_blocks) == 6 - 1


@pytest.mark.rule("KV-POOL-16", "KV-MGR-13")
def test_popped_references_stay_counted(story: Story) -> None:
    """Block 1 has 2 references, 2 after a is popped, and 1 once it has been returned."""
    manager = story.manager
    assert references(manager)[1] == 2
    manager.pop_blocks_for_free(story.a)
    assert references(manager)[1] == 2
    assert manager.snapshot().popped_blocks == (1, 2, 3)
    manager.free_blocks([1])
    assert references(manager)[1] == 1
    assert manager.snapshot().popped_blocks == (2, 3)


@pytest.mark.rule("KV-POOL-17")
def test_a_shared_block_has_the_same_index_in_every_list(story: Story) -> None:
    """Block 2 holds tokens 4 … 7 of a and of b and is entry 1 of both lists."""
    assert blocks_of(story.manager, story.a) == [1, 2, 3]
    assert blocks_of(story.manager, story.b) == [1, 2, 4]
