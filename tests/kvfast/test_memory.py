"""Memory of a block: a record, slots of the table, an entry of a list; no Python object."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from kvfast._core.pool import BlockPool
from kvfast._implementation import FastImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from tests.contract.builders import make_config
from tests.lockstep.test_lockstep import fast

__all__ = ["fast"]  # the fixture

PROMPT_TOKENS = 16_000
BLOCK_TOKENS = 16


def growth(implementation: Implementation, num_requests: int) -> tuple[int, int]:
    """Return the objects and traced bytes added by prompts that are allocated, cached, freed."""
    config = make_config(20_001, BLOCK_TOKENS, max_model_len_tokens=PROMPT_TOKENS)
    manager = implementation.create(config, check_invariants=False)
    inputs = [RequestInput(f"r{i}", range(i, i + PROMPT_TOKENS)) for i in range(num_requests)]
    requests = [implementation.make_request(manager, given) for given in inputs]
    gc.collect()
    tracemalloc.start()
    try:
        objects = len(gc.get_objects())
        for request in requests:
            assert manager.allocate_slots(request, PROMPT_TOKENS) is not None
        manager.take_new_block_ids()
        for request in requests:
            manager.free(request)
        gc.collect()
        return len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_blocks_in_use_add_no_python_objects(fast: Implementation) -> None:
    few, few_bytes = growth(fast, 1)
    many, many_bytes = growth(fast, 10)
    blocks = 9 * PROMPT_TOKENS // BLOCK_TOKENS
    assert many - few < 10 * 9  # what a request may leave
    # Flat arrays of 4 and 8 bytes a block may have doubled; an object and its pointer take more.
    assert many_bytes - few_bytes < 24 * blocks


class KeepsAnObject(FastImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> Any:
        manager: Any = super().create(config, **options)
        allocate, kept = manager.allocate_slots, list[list[int]]()

        class Manager:
            def __getattr__(self, name: str) -> Any:
                return getattr(manager, name)

            def allocate_slots(self, *arguments: Any) -> Any:
                blocks = allocate(*arguments)
                kept.extend([block] for block in blocks.groups[0])
                return blocks

        return Manager()

    def make_request(self, manager: Any, request: RequestInput) -> Any:
        inner = super().create(manager.config, check_invariants=False)
        return super().make_request(inner, request)


def test_an_object_per_block_is_found() -> None:
    twin = KeepsAnObject("uncompiled")
    with pytest.raises(AssertionError):
        test_blocks_in_use_add_no_python_objects(twin)


@pytest.mark.parametrize("num_blocks", [1024, 2**20, 2**20 + 1, 3 * 2**20, 4_000_000])
def test_a_block_costs_at_most_120_bytes(num_blocks: int) -> None:
    """Record and slots; a list needs up to 8 more, as places are powers of 2."""
    pool = BlockPool(
        num_blocks, 4, events=None, residency=None, unhashed_to_front=True, removed_per_copy=False
    )
    total = pool.keys.facts.nbytes + pool.keys.slots.nbytes
    assert total / num_blocks <= 120 - 8
