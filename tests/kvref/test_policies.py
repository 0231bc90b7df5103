"""The choices that kvref offers besides what the rules say."""

from __future__ import annotations

import pytest

import kvref
from kvspec.events import BlockRemoved
from kvspec.interface import KVCacheManager
from kvspec.policy import Policy
from tests.rules.builders import admit, hit_of, new_manager, new_request, queue_of
from tests.rules.specs import chunked

KVREF = kvref.implementation()


@pytest.mark.rule("KV-POOL-6")
@pytest.mark.parametrize(
    ("where", "queue"), [("front", [4, 5, 3, 2, 1]), ("back", [5, 4, 3, 2, 1])]
)
def test_where_unhashed_blocks_go(where: str, queue: list[int]) -> None:
    """Released as [4, 3, 2, 1], of which 3, 2, 1 are cached: 4 in front, or all in list order."""
    manager = new_manager(KVREF, 6, policy=Policy(unhashed_freed_to=where))
    request = new_request(KVREF, manager, "r", range(13))
    admit(manager, request)
    manager.free(request)
    assert queue_of(manager) == queue


def two_copies(policy: Policy) -> KVCacheManager:
    """Blocks 1 and 2 carry one key; the events so far are taken."""
    manager = new_manager(KVREF, 6, policy=policy, enable_events=True)
    requests = [new_request(KVREF, manager, name, range(4)) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4, delay_cache_blocks=True)
    for request in requests:
        manager.cache_blocks(request, 4)
    manager.take_events()
    return manager


@pytest.mark.rule("KV-EVT-4")
@pytest.mark.parametrize(("per", "events"), [("copy", [1, 1]), ("last_copy", [0, 1])])
def test_what_a_removal_is_told_for(per: str, events: list[int]) -> None:
    """Every copy that goes, or only the last one; a look-up finds the other copy either way."""
    manager = two_copies(Policy(removed_event_per=per))
    told = []
    for block, left in ((1, [2]), (2, [])):
        manager.evict_blocks([block])
        taken = manager.take_events()
        assert all(isinstance(event, BlockRemoved) for event in taken)
        told.append(len(taken))
        assert hit_of(manager, new_request(KVREF, manager, "c", range(5))) == left
    assert told == events


@pytest.mark.parametrize(("is_hit", "hit"), [(True, [0, 0]), (False, [])])
def test_whether_a_null_prefix_is_a_hit(is_hit: bool, hit: list[int]) -> None:
    """A fresh prompt of 11 tokens with chunks of 8: the first chunk counts as computed, or not."""
    policy = Policy(chunked_null_prefix_is_hit=is_hit)
    manager = new_manager(KVREF, 6, specs=[chunked(4, 8)], policy=policy)
    assert hit_of(manager, new_request(KVREF, manager, "r", range(11))) == hit
