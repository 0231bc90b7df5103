"""KV-COORD: managers with caching off, and managers with one group."""

from __future__ import annotations

import pytest

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.events import AllBlocksCleared
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    admit,
    cached_blocks,
    full,
    queue_of,
    run_on,
)


@pytest.mark.rule("KV-COORD-1", "KV-POOL-6", "KV-MGR-12")
def test_with_caching_off_any_number_of_groups_shares_the_pool(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Two groups with B = 8 and 20 tokens: 1, 2, 3 and 4, 5, 6; freed, the queue starts 6, 5, 4."""
    manager = make_manager(10, 8, specs=[full(8), full(8)], enable_caching=False)
    request = make_request(manager, "r", range(20))
    assert admit(manager, request) == KVCacheBlocks(((1, 2, 3), (4, 5, 6)))
    assert manager.take_new_block_ids() == (1, 2, 3, 4, 5, 6)
    assert manager.get_unhashed_block_ids(request) == ((1, 2, 3), (4, 5, 6))
    manager.free(request)
    assert queue_of(manager)[:6] == [6, 5, 4, 3, 2, 1]


@pytest.mark.rule("KV-COORD-1", "KV-CFG-2", "KV-CFG-3")
def test_without_a_group_a_request_needs_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The answer is a list of no lists, and the pool stays as it was."""
    manager = make_manager(6, specs=[], enable_caching=False)
    request = make_request(manager, "r", range(20))
    assert manager.get_computed_blocks(request) == PrefixHit(KVCacheBlocks(()), 0)
    assert manager.allocate_slots(request, 20) == KVCacheBlocks(())
    assert manager.get_num_common_prefix_blocks(request) == ()
    assert manager.num_free_blocks == 5


@pytest.mark.rule("KV-COORD-1", "KV-MGR-2", "KV-MGR-11", "KV-MGR-15")
@pytest.mark.parametrize("num_groups", [1, 2])
def test_with_caching_off_nothing_is_looked_up_or_cached(
    make_manager: MakeManager, make_request: MakeRequest, num_groups: int
) -> None:
    """Equal requests share nothing, and no event but AllCleared is ever queued."""
    manager = make_manager(
        20, 4, specs=[full()] * num_groups, enable_caching=False, enable_events=True, log_stats=True
    )
    first, second = (make_request(manager, name, range(8)) for name in "ab")
    for request in (first, second):
        assert admit(manager, request) is not None
        manager.cache_blocks(request, 8)
    empty = PrefixHit(KVCacheBlocks.empty(num_groups), 0, None)
    assert manager.get_computed_blocks(second) == empty
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert stats.requests == 0
    assert manager.get_num_common_prefix_blocks(first) == (0,) * num_groups
    assert cached_blocks(manager) == set()
    manager.free(first)
    manager.free(second)
    assert manager.take_events() == ()
    assert manager.reset_prefix_cache() is True
    assert manager.take_events() == (AllBlocksCleared(),)


@pytest.mark.rule("KV-COORD-2", "KV-CFG-4", "KV-CFG-5")
def test_with_one_group_the_span_is_the_only_granularity(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 2 on 2 ranks: of 11 tokens 10 may hit; both full blocks are cached and 8 tokens hit."""
    manager = make_manager(6, 2, dcp_world_size=2)
    assert manager.config.scheduler_block_size_tokens == 4
    assert manager.config.hash_block_size_tokens == 4
    request = make_request(manager, "first", range(11))
    admit(manager, request, 7)
    assert cached_blocks(manager) == {1}
    run_on(manager, request, 4)
    assert cached_blocks(manager) == {1, 2}
    hit = manager.get_computed_blocks(make_request(manager, "r", range(11)))
    assert hit == PrefixHit(KVCacheBlocks(((1, 2),)), 8, uncached_common_prefix_tokens=None)
