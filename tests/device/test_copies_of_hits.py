"""Copies that a manager asks for, made as page operations before the step (KV-INSIDE-3)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch

from kvfast._implementation import FastImplementation
from kvfast.device import Backend, PageOperations
from kvspec.config import ManagerConfig
from kvspec.inside import CopyingManager
from kvspec.policy import Policy
from kvspec.request import RequestInput, RequestStatus
from tests.device.models import cache, filled, full, mamba


@pytest.mark.rule("KV-INSIDE-15", "KV-INSIDE-16", "KV-DEV-5")
def test_the_copies_of_a_step_run_at_once_and_bring_what_a_hit_reads(backend: Backend) -> None:
    kv_cache = cache(full(), replace(mamba(), mamba_cache_mode="align"), num_blocks=20)
    implementation = FastImplementation()
    config = ManagerConfig(
        kv_cache,
        max_model_len_tokens=20,
        hash_block_size_tokens=2,
        policy=Policy(hits_inside_blocks=True),
    )
    manager = cast(CopyingManager, implementation.create(config))
    pools = filled(kv_cache)
    operations = PageOperations(pools, backend=backend)
    first, second = (
        implementation.make_request(manager, RequestInput(name, list(range(1, 8)))) for name in "ab"
    )
    manager.allocate_slots(first, 6)
    first.num_computed_tokens, first.status = 6, RequestStatus.RUNNING
    manager.new_step_starts()
    manager.allocate_slots(first, 1)
    copies = [manager.take_block_copies()]  # its state is kept for others
    manager.new_step_starts()
    hit = manager.get_computed_blocks(second)
    assert hit.hit_length_tokens == 6
    assert manager.allocate_slots(
        second, 1, num_new_computed_tokens=6, new_computed_blocks=hit.blocks
    )
    copies.append(manager.take_block_copies())
    assert [len(step.pairs) for step in copies] == [1, 2]
    for step in copies:
        before = [pages.clone() for pages in pools.pages]
        operations.copy_blocks(*zip(*step.pairs, strict=True))
        for pages, old in zip(pools.pages, before, strict=True):
            for source, destination in step.pairs:
                old[destination] = old[source]
            assert torch.equal(pages, old)
        manager.free_blocks(step.retained)
    assert manager.get_blocks(second).groups[1][-1] == copies[1].pairs[1][1]
