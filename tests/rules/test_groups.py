"""KV-GRP: what every group does with its block lists, shown on full attention, B = 4."""

from __future__ import annotations

import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockStored
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    cached_blocks,
    cached_count,
    full,
    hit_of,
    queue_of,
    references,
    run_on,
)
from tests.rules.specs import sliding


@pytest.mark.rule("KV-GRP-1")
def test_a_full_block_creates_the_cached_count(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Three tokens have a list and no count; the fourth token brings the count to 1."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", [1, 2, 3, 4])
    admit(manager, request, 3)
    assert blocks_of(manager, request) == [1]
    assert cached_count(manager, request) is None
    run_on(manager, request)
    assert blocks_of(manager, request) == [1]
    assert cached_count(manager, request) == 1


@pytest.mark.rule("KV-GRP-1", "KV-GRP-5")
def test_a_hit_creates_the_cached_count(story: Story) -> None:
    """A request of 9 tokens that hits 1 and 2 starts with them and with a count of 2."""
    assert blocks_of(story.manager, story.b) == [1, 2, 4]
    assert cached_count(story.manager, story.b) == 2


@pytest.mark.rule("KV-GRP-1")
def test_the_count_vanishes_with_the_list(story: Story) -> None:
    """A freed request and a popped one are both unknown afterwards."""
    story.manager.free(story.a)
    story.manager.pop_blocks_for_free(story.b)
    assert story.manager.snapshot().requests == {}


@pytest.mark.rule("KV-GRP-2", "KV-FULL-1", "KV-MGR-14")
@pytest.mark.parametrize("num_computed", [0, 3, 10, 1000])
def test_full_attention_replaces_nothing_by_null(story: Story, num_computed: int) -> None:
    """s(c) is 0 for every c, so no block lies before it: list, queue and counts stay."""
    before = story.manager.snapshot()
    story.manager.remove_skipped_blocks(story.a, num_computed)
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-GRP-2", "KV-MGR-14", "KV-POOL-7")
def test_blocks_before_the_window_become_null(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Three blocks and s(c) = 10: null, null and the third; the release call is [2, 1]."""
    manager = make_manager(6, 4, specs=[sliding(4, 3)])
    request = make_request(manager, "r", range(12))
    admit(manager, request)
    for computed, blocks in ((5, [1, 2, 3]), (12, [0, 0, 3]), (12, [0, 0, 3])):
        manager.remove_skipped_blocks(request, computed)  # s(5) = 3, s(12) = 10
        assert blocks_of(manager, request) == blocks
    assert queue_of(manager) == [4, 5, 2, 1]
    assert cached_count(manager, request) == 3


@pytest.mark.rule("KV-GRP-3", "KV-MGR-18")
@pytest.mark.parametrize(("num_tokens", "need"), [(1, 0), (12, 0), (13, 1), (16, 1), (17, 2)])
def test_a_running_request_needs_what_its_list_lacks(
    story: Story, num_tokens: int, need: int
) -> None:
    """Held 3 and n = 13: one block; held enough: none."""
    assert (
        story.manager.get_num_blocks_to_allocate(
            story.a, num_tokens=num_tokens, total_computed_tokens=10, num_tokens_main_model=10
        )
        == need
    )


@pytest.mark.rule("KV-GRP-4", "KV-MGR-7")
@pytest.mark.parametrize(("in_use", "need"), [([], 5), ([2, 3], 3)])
def test_free_hits_count_towards_the_need(
    make_manager: MakeManager, make_request: MakeRequest, in_use: list[int], need: int
) -> None:
    """17 tokens with hits 1, 2, 3: two new blocks, and each hit that sits in the free queue."""
    manager = make_manager(10, 4)
    first = make_request(manager, "first", range(1, 13))
    admit(manager, first)
    if in_use:  # block 1 goes back, 2 and 3 wait for a deferred free
        manager.pop_blocks_for_free(first)
        manager.free_blocks([1])
    else:
        manager.free(first)
    request = make_request(manager, "r", range(1, 18))
    hit = manager.get_computed_blocks(request)
    assert hit.blocks.to_lists() == [[1, 2, 3]]
    free = manager.num_free_blocks
    spare = free - need
    for reserved, fits in ((spare + 1, False), (spare, True)):
        answer = manager.allocate_slots(
            request,
            5,
            num_new_computed_tokens=12,
            new_computed_blocks=hit.blocks,
            reserved_blocks=reserved,
        )
        assert (answer is not None) is fits
    assert free - manager.num_free_blocks == need


@pytest.mark.rule("KV-GRP-4", "KV-COORD-1")
def test_without_caching_the_need_is_what_the_list_lacks(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """With caching off, held 1 and n = 9: 3 - 1 = 2."""
    manager = make_manager(6, 4, enable_caching=False)
    request = make_request(manager, "r", range(9))
    admit(manager, request, 4)
    need = manager.get_num_blocks_to_allocate(
        request, num_tokens=9, total_computed_tokens=4, num_tokens_main_model=9
    )
    assert need == 2
    assert run_on(manager, request, 5) == [[2, 3]]


@pytest.mark.rule("KV-GRP-5", "KV-POOL-5")
def test_taking_hits_touches_them(story: Story) -> None:
    """Hits 1 and 2: list 1, 2, …, count 2, one reference more on each."""
    assert references(story.manager) == {1: 2, 2: 2, 3: 1, 4: 1}
    assert cached_count(story.manager, story.b) == 2


@pytest.mark.rule("KV-GRP-5", "KV-GRP-6")
def test_external_tokens_without_hits_create_an_entry_of_zero(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """No hits but 8 external tokens: count 0, and two blocks that the answer does not name."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(12))
    answer = manager.allocate_slots(
        request, 0, num_external_computed_tokens=8, delay_cache_blocks=True
    )
    assert answer == KVCacheBlocks(((),))
    assert blocks_of(manager, request) == [1, 2]
    assert cached_count(manager, request) == 0


@pytest.mark.rule("KV-GRP-6", "KV-GRP-8")
def test_external_tokens_get_blocks_behind_the_hits(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Hits 1, 2 and 6 external tokens: two blocks; three tokens more: one that the answer names."""
    manager = make_manager(10, 4)
    admit(manager, make_request(manager, "a", range(1, 9)))
    request = make_request(manager, "r", range(1, 18))
    hit = manager.get_computed_blocks(request)
    answer = manager.allocate_slots(
        request,
        3,
        num_new_computed_tokens=8,
        new_computed_blocks=hit.blocks,
        num_external_computed_tokens=6,
        delay_cache_blocks=True,
    )
    assert blocks_of(manager, request) == [1, 2, 3, 4, 5]
    assert answer == KVCacheBlocks(((5,),))
    assert cached_count(manager, request) == 2
    request.num_computed_tokens = 14
    manager.cache_blocks(request, 14)
    assert cached_count(manager, request) == 3


@pytest.mark.rule("KV-GRP-7")
def test_new_blocks_are_appended_in_the_order_of_taking(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Held 2 and n = 13: the list grows by two, and the answer is these two."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(13))
    admit(manager, request, 8)
    assert run_on(manager, request, 5) == [[3, 4]]
    assert blocks_of(manager, request) == [1, 2, 3, 4]


@pytest.mark.rule("KV-GRP-8")
def test_hits_are_touched_before_any_block_is_taken(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The hit sits at the front of the queue; the new block is the one behind it."""
    manager = make_manager(4, 4)
    first = make_request(manager, "first", range(1, 5))
    admit(manager, first)
    others = make_request(manager, "others", range(50, 58))
    admit(manager, others)
    manager.free(first)
    manager.free(others)
    assert queue_of(manager) == [1, 3, 2]
    request = make_request(manager, "r", range(1, 9))
    assert admit(manager, request) == KVCacheBlocks(((3,),))
    assert blocks_of(manager, request) == [1, 3]
    assert cached_blocks(manager) == {1, 2, 3}
    assert hit_of(manager, make_request(manager, "s", [*range(1, 9), 9])) == [1, 3]


@pytest.mark.rule("KV-GRP-8")
def test_no_group_takes_the_hit_of_a_later_one(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Group 0 hits block 1, group 1 block 2; both are free, in front of what is taken."""
    manager = make_manager(5, 4, specs=[full(4), full(4, head_size=16)])
    first, others = (make_request(manager, str(t), range(t, t + 4)) for t in (0, 50))
    admit(manager, first)
    admit(manager, others)
    manager.free(first)
    manager.free(others)
    assert queue_of(manager) == [1, 2, 3, 4]
    request = make_request(manager, "r", range(8))
    assert admit(manager, request) == KVCacheBlocks(((3,), (4,)))
    assert manager.get_blocks(request).to_lists() == [[1, 3], [2, 4]]


@pytest.mark.rule("KV-GRP-9", "KV-MGR-8")
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_new_computed_tokens": 4, "new_computed_blocks": KVCacheBlocks(((1,),))},
        {"num_new_computed_tokens": 4},
        {"new_computed_blocks": KVCacheBlocks(((1,),))},
    ],
)
def test_a_running_request_takes_no_hits(story: Story, arguments: dict[str, object]) -> None:
    """Hit blocks, or hit tokens, for a request under way are an error."""
    before = story.manager.snapshot()
    with pytest.raises(InvalidArgumentError):
        story.manager.allocate_slots(story.a, 1, **arguments)  # type: ignore[arg-type]  # any
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-GRP-9")
def test_external_tokens_of_a_running_request_are_covered_by_its_new_blocks(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """List 1, 2, 8 computed, 4 external and 1 new: n = 13, two new blocks in the answer."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(13))
    admit(manager, request, 8)
    answer = manager.allocate_slots(request, 1, num_external_computed_tokens=4)
    assert answer == KVCacheBlocks(((3, 4),))
    assert cached_count(manager, request) == 3


@pytest.mark.rule("KV-GRP-9")
def test_a_request_with_blocks_but_no_entry_gets_no_external_tokens(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """List 1 for 3 tokens and no entry: neither external tokens nor hits."""
    manager = make_manager(6, 4)
    admit(manager, make_request(manager, "cached", range(4)))
    request = make_request(manager, "r", range(12))
    manager.allocate_slots(request, 3, delay_cache_blocks=True)
    assert cached_count(manager, request) is None
    before = manager.snapshot()
    hit = {"num_new_computed_tokens": 4, "new_computed_blocks": KVCacheBlocks(((1,),))}
    for field, arguments in (
        ("num_external_computed_tokens", {"num_external_computed_tokens": 4}),
        ("new_computed_blocks", hit),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            manager.allocate_slots(request, 1, **arguments)
        assert caught.value.field == field
    assert manager.snapshot() == before


@pytest.mark.rule("KV-GRP-10", "KV-MGR-16")
def test_new_blocks_are_queued_for_zeroing_and_hits_are_not(story: Story) -> None:
    """After a took 1, 2, 3 and b hit 1 and 2, the queue is 1, 2, 3, 4."""
    assert story.manager.take_new_block_ids() == (1, 2, 3, 4)


@pytest.mark.rule("KV-GRP-10")
def test_freeing_does_not_take_a_block_out_of_the_zeroing_queue(
    story: Story, make_request: MakeRequest
) -> None:
    """Block 4 is freed and taken again before the queue is read: it is there twice."""
    manager = story.manager
    manager.take_new_block_ids()
    manager.evict_blocks([3])
    manager.free(story.b)
    assert queue_of(manager) == [4, 5]
    admit(manager, make_request(manager, "c", [50]))
    manager.free(make_request(manager, "c", [50]))
    admit(manager, make_request(manager, "d", [51]))
    assert manager.take_new_block_ids() == (4, 4)


@pytest.mark.rule("KV-GRP-10", "KV-GRP-6")
def test_external_blocks_are_queued_for_zeroing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Four external tokens and one new one: both blocks are queued."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(5))
    manager.allocate_slots(request, 1, num_external_computed_tokens=4)
    assert manager.take_new_block_ids() == (1, 2)


@pytest.mark.rule("KV-GRP-10", "KV-COORD-1")
def test_groups_queue_for_zeroing_one_after_another(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Each group has its own queue, with caching off too."""
    manager = make_manager(10, 4, specs=[full(4), full(8)], enable_caching=False)
    request = make_request(manager, "r", range(17))
    admit(manager, request, 8)
    run_on(manager, request, 9)
    assert manager.get_blocks(request).to_lists() == [[1, 2, 4, 5, 6], [3, 7, 8]]
    assert manager.take_new_block_ids() == (1, 2, 4, 5, 6, 3, 7, 8)


@pytest.mark.rule("KV-GRP-11", "KV-FULL-6")
def test_a_caching_call_covers_the_full_blocks_behind_the_count(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Count 1 and n = 14: blocks 1 and 2 of the list; n = 15 adds nothing."""
    manager = make_manager(6, 4, enable_events=True)
    request = make_request(manager, "r", range(16))
    admit(manager, request, 4)
    assert cached_count(manager, request) == 1
    manager.allocate_slots(request, 12, delay_cache_blocks=True)
    manager.take_events()
    manager.cache_blocks(request, 14)
    assert cached_count(manager, request) == 3
    assert cached_blocks(manager) == {1, 2, 3}
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == tuple(request.block_hashes[1:3])
    before = manager.snapshot()
    manager.cache_blocks(request, 15)
    assert manager.snapshot() == before
    assert manager.take_events() == ()


@pytest.mark.rule("KV-GRP-11")
def test_a_caching_call_below_one_block_leaves_no_entry(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Three tokens cover no block: the absent count stays absent."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(3))
    admit(manager, request)
    manager.cache_blocks(request, 3)
    assert cached_count(manager, request) is None
