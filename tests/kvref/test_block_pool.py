"""Errors of kvref's pool when kvref itself is wrong, which no caller can provoke."""

from __future__ import annotations

import pytest

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvspec.errors import InvariantViolation


@pytest.mark.rule("KV-POOL-18")
def test_a_full_block_is_not_registered_twice() -> None:
    """Let a key for 8 tokens replace one for 4, not the reverse, and not twice."""
    pool = BlockPool(3, events=EventLog(enabled=False, int_hashes=False))
    (block,) = pool.allocate(1)
    pool.register(block, b"partial", 4)
    pool.register(block, b"full", 8)
    assert pool.keys[block] == [b"full"]
    for num_tokens in (4, 8):
        with pytest.raises(InvariantViolation) as caught:
            pool.register(block, b"again", num_tokens)
        assert caught.value.rule == "KV-POOL-18"
        assert caught.value.invariant == "blocks_are_registered_once"
    assert pool.keys[block] == [b"full"]
    assert pool.cached == {b"full": [block]}


@pytest.mark.rule("KV-PART-2", "KV-PART-3")
def test_only_a_longer_prefix_takes_the_place_of_the_primary_key() -> None:
    pool = BlockPool(3, events=EventLog(enabled=False, int_hashes=False))
    (block,) = pool.allocate(1)
    for key, num_tokens in ((b"primary", 8), (b"as long", 8), (b"shorter", 4)):
        assert pool.register_partial(block, key, num_tokens)
    assert pool.keys[block] == [b"primary", b"as long", b"shorter"]
    assert pool.register_partial(block, b"longer", 12)
    assert pool.keys[block] == [b"longer"]
