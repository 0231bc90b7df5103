"""KV-POOL-10 … KV-POOL-14, KV-POOL-18: keys, eviction by id, reset and copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvspec.errors import UnknownBlockError
from kvspec.events import AllBlocksCleared
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    cached_blocks,
    cached_count,
    everything,
    hit_of,
    queue_of,
    run_on,
)


@pytest.mark.rule("KV-POOL-10")
def test_eviction_drops_the_keys_and_nothing_else(story: Story) -> None:
    """Evicting [0, 3, 2] leaves lists, references, counts and the queue as they were."""
    manager = story.manager
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
    assert after == expected
    assert hit_of(manager, story.a) == [1]
    manager.free(story.a)
    assert queue_of(manager) == [3, 5]
    manager.free(story.b)
    assert queue_of(manager) == [4, 2, 3, 5, 1]


@pytest.mark.rule("KV-POOL-10", "KV-GRP-11")
def test_an_evicted_block_is_not_registered_again_for_its_owner(story: Story) -> None:
    """Request a fills its third block; block 2 stays without a key."""
    manager = story.manager
    manager.evict_blocks([2])
    manager.cache_blocks(story.a, 10)
    assert cached_blocks(manager) == {1}
    assert cached_count(manager, story.a) == 2


@pytest.mark.rule("KV-POOL-10", "KV-ERR-3")
@pytest.mark.parametrize("bad", [-1, 6, True, "2", None, 2.0])
def test_all_ids_are_checked_before_the_first_eviction(story: Story, bad: object) -> None:
    """With one bad id behind it, block 2 keeps its key."""
    manager = story.manager
    before = manager.snapshot()
    with pytest.raises(UnknownBlockError):
        manager.evict_blocks([2, bad])  # type: ignore[list-item]  # the point of the test
    assert manager.snapshot() == before


@pytest.mark.rule("KV-POOL-11", "KV-EVT-5")
def test_a_reset_needs_an_idle_pool(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """False while a request or a deferred free holds a block; True once all are free."""
    manager = make_manager(6, 4, enable_events=True, log_stats=True)
    request = make_request(manager, "r", range(1, 11))
    admit(manager, request)
    before = everything(manager)
    assert manager.reset_prefix_cache() is False
    popped = manager.pop_blocks_for_free(request)
    assert manager.reset_prefix_cache() is False
    assert manager.snapshot().block_keys == before.snapshot.block_keys
    manager.free_blocks(popped[::-1])
    assert queue_of(manager) == [3, 4, 5, 2, 1]
    assert manager.take_events() == ()
    assert manager.reset_prefix_cache() is True
    assert queue_of(manager) == [3, 4, 5, 2, 1]
    assert manager.snapshot().lookup_order == {}
    assert hit_of(manager, request) == []


@pytest.mark.rule("KV-POOL-11")
def test_a_reset_of_an_empty_cache_succeeds(make_manager: MakeManager) -> None:
    """With nothing cached it still clears and marks the statistics."""
    manager = make_manager(6, 4, enable_events=True, log_stats=True)
    assert manager.reset_prefix_cache() is True
    assert manager.take_events() == (AllBlocksCleared(),)
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert stats.reset


# Copies of one content.


def two_copies(make_manager: MakeManager, make_request: MakeRequest) -> Story:
    """Blocks 1 and 2 hold the same four tokens, computed in one step."""
    manager = make_manager(6, 4)
    a = make_request(manager, "a", [1, 2, 3, 4])
    b = make_request(manager, "b", [1, 2, 3, 4])
    assert [manager.allocate_slots(r, 4, delay_cache_blocks=True) for r in (a, b)]
    for request in (a, b):
        request.num_computed_tokens = 4
        manager.cache_blocks(request, 4)
    return Story(manager, a, b)


@pytest.mark.rule("KV-POOL-13")
def test_a_look_up_answers_the_first_registered_copy(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Block 1 until it is evicted, then 2, and still 2 when a third copy is registered."""
    copies = two_copies(make_manager, make_request)
    manager = copies.manager
    asker = make_request(manager, "c", [1, 2, 3, 4, 5])
    assert hit_of(manager, asker) == [1]
    manager.evict_blocks([1])
    assert hit_of(manager, asker) == [2]
    third = make_request(manager, "d", [1, 2, 3, 4])
    manager.allocate_slots(third, 4)
    assert blocks_of(manager, third) == [3]
    assert hit_of(manager, asker) == [2]
    assert list(manager.snapshot().lookup_order.values()) == [(2, 3)]


@pytest.mark.rule("KV-POOL-14")
def test_copies_are_kept_apart(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Both requests keep their own block, both blocks stay cached under one key."""
    copies = two_copies(make_manager, make_request)
    manager = copies.manager
    assert (blocks_of(manager, copies.a), blocks_of(manager, copies.b)) == ([1], [2])
    assert list(manager.snapshot().lookup_order.values()) == [(1, 2)]
    manager.free(copies.a)
    manager.free(copies.b)
    assert queue_of(manager) == [3, 4, 5, 1, 2]
    asker = make_request(manager, "c", [1, 2, 3, 4, 5])
    other = make_request(manager, "d", range(50, 66))
    manager.allocate_slots(other, 16, delay_cache_blocks=True)
    assert blocks_of(manager, other) == [3, 4, 5, 1]
    assert hit_of(manager, asker) == [2]
    run_on(manager, make_request(manager, "e", [60]))
    assert hit_of(manager, asker) == []


@pytest.mark.rule("KV-POOL-18")
def test_hit_blocks_are_not_registered_again(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """When b fills its third block only that is registered: keys and order of 1 and 2 stay."""
    manager = make_manager(6, 4, enable_events=True)
    a = make_request(manager, "a", range(1, 11))
    b = make_request(manager, "b", [*range(1, 9), 20, 21, 22, 23])
    admit(manager, a)
    admit(manager, b, 1)
    assert cached_count(manager, b) == 2
    before = manager.snapshot()
    manager.take_events()
    run_on(manager, b, 3)
    after = manager.snapshot()
    assert after.block_keys[1:3] == before.block_keys[1:3]
    keys = [key for block in (1, 2) for key in before.block_keys[block]]
    assert [after.lookup_order[key] for key in keys] == [(1,), (2,)]
    (stored,) = manager.take_events()
    assert getattr(stored, "block_hashes", ()) == (b.block_hashes[2],)
