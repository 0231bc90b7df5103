"""The free queue of the pool against a plain list; and where the facts about a block stand."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfast._core.pool import BlockPool

NUM_BLOCKS = 9


def new_pool(pool_class: Any, num_blocks: int = NUM_BLOCKS) -> Any:
    """A pool in which nobody watches."""
    return pool_class(
        num_blocks, 4, events=None, residency=None, unhashed_to_front=True, removed_per_copy=False
    )


@pytest.fixture(params=["_core", "_compiled"])
def pool_class(request: pytest.FixtureRequest) -> Any:
    """Of each build. Skips without a compiled one, unless it has to be there."""
    try:
        return importlib.import_module(f"kvfast.{request.param}.pool").BlockPool
    except ImportError as error:
        if os.environ.get("KVSPEC_REQUIRE_COMPILED"):
            raise
        pytest.skip(f"no compiled build of kvfast here: {error}")


def test_blocks_are_free_in_the_order_of_their_ids_at_first(pool_class: Any) -> None:
    assert new_pool(pool_class).queue() == list(range(1, NUM_BLOCKS))
    assert new_pool(pool_class, 1).queue() == []
    assert new_pool(pool_class, 2).queue() == [1]


def test_the_block_in_front_is_taken(pool_class: Any) -> None:
    pool = new_pool(pool_class)
    pool.set_queue([3, 1, 8])
    assert [pool.take() for _ in range(3)] == [3, 1, 8]
    assert pool.queue() == []
    assert pool.num_free == 0


step = st.tuples(st.sampled_from(["take", "unlink", "front", "back"]), st.integers(0, NUM_BLOCKS))


def run(pool: Any, steps: list[tuple[str, int]]) -> None:
    """The same steps on the queue and on a list, compared after each."""
    free, used = list(range(1, NUM_BLOCKS)), list[int]()
    for name, index in steps:
        chosen = used if name in ("front", "back") else free
        if not chosen:
            continue
        block = free[0] if name == "take" else chosen[index % len(chosen)]
        chosen.remove(block)
        if name == "take":
            assert pool.take() == block
            used.append(block)
        elif name == "unlink":
            pool.unlink(block)
            used.append(block)
        elif name == "front":
            pool.put(0, block)
            free.insert(0, block)
        else:
            pool.put(pool.before(0), block)
            free.append(block)
        assert pool.queue() == free
        assert pool.num_free == len(free)


@given(steps=st.lists(step, max_size=40))
def test_any_order_of_taking_and_putting_equals_a_list(steps: list[tuple[str, int]]) -> None:
    run(new_pool(BlockPool), steps)


class PutsInFrontOfTheFirst(BlockPool):
    """A twin whose front is the second place."""

    def put(self, left: int, block: int) -> None:
        super().put(left or self.after(0), block)


def test_a_queue_with_a_wrong_front_is_found() -> None:
    with pytest.raises(AssertionError):
        run(new_pool(PutsInFrontOfTheFirst), [("unlink", 3), ("front", 0)])
