"""Promises of the reference alone: which of two errors it raises, and what it is made of."""

from __future__ import annotations

from typing import Any

import pytest

import kvref
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from tests.contract.builders import new_manager, new_request


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
