"""Promises of the reference alone: which of two errors it raises, and what it is made of."""

from __future__ import annotations

from typing import Any

import pytest

import kvref
from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.policy import Policy
from tests.contract.builders import make_config, new_manager, new_request


@pytest.mark.parametrize(
    "offer",
    [
        {"num_new_computed_tokens": 4},
        {"new_computed_blocks": KVCacheBlocks(((1,),))},
        {"num_new_computed_tokens": 4, "new_computed_blocks": KVCacheBlocks(((1,),))},
    ],
    ids=["tokens", "blocks", "both"],
)
def test_hits_of_a_running_request_are_refused_as_a_whole(offer: dict[str, Any]) -> None:
    implementation = kvref.implementation()
    manager = new_manager(implementation)
    request = new_request(implementation, manager, "r", range(9))
    manager.allocate_slots(request, 4)
    with pytest.raises(InvalidArgumentError, match="already holds blocks") as caught:
        manager.allocate_slots(request, 1, **offer)
    assert caught.value.field == "new_computed_blocks"


def test_what_is_configured_reaches_the_pool_and_the_events() -> None:
    """Look inside; the rules define what each of these does."""
    policy = Policy(unhashed_freed_to="back", removed_event_per="last_copy")
    config = make_config(enable_events=True, int_event_hashes=True, policy=policy)
    manager = ReferenceManager(config)
    pool = manager.pool
    assert (pool.unhashed_freed_to, pool.removed_event_per) == ("back", "last_copy")
    assert manager.event_log.int_hashes is True
