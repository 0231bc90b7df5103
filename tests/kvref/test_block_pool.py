"""What kvref's pool does when kvref itself is wrong: no caller can bring it there."""

from __future__ import annotations

import pytest

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvspec.errors import InvariantViolation


@pytest.mark.rule("KV-POOL-18")
def test_a_full_block_is_not_registered_twice() -> None:
    """A key for 8 tokens takes the place of one for 4, not the other way round, and not twice."""
    pool = BlockPool(3, events=EventLog(enabled=False, int_hashes=False))
    (block,) = pool.allocate(1)
    pool.register(block, b"partial", 4)
    pool.register(block, b"full", 8)
    assert pool.keys[block] == [b"full"]
    for num_tokens in (4, 8):
        with pytest.raises(InvariantViolation) as caught:
            pool.register(block, b"again", num_tokens)
        assert caught.value.rule == "KV-POOL-18"
    assert pool.keys[block] == [b"full"]
    assert pool.cached == {b"full": [block]}
