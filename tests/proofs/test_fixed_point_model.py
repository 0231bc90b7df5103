"""The model of searches in proofs/code/fixed_point.py is kvref's search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvfast._core.request import FastRequest
from kvref.hybrid import HybridCoordinator
from kvref.request import ReferenceRequest
from proofs.code._fixed_point import worlds


class FakeAttention:
    """A group of a small world, as kvref's coordinator asks it."""

    block_size = step = 1
    looks_beyond = False

    def __init__(self, number: int, group: worlds.Group) -> None:
        self.group = group
        self.members = [SimpleNamespace(index=number, is_cacheable=True)]
        self.is_full, self.is_mamba = group.is_full, group.is_mamba
        self.drops_block = group.is_eagle

    def look_up(
        self, hashes: object, length: int, *, drop: bool, alignment: int
    ) -> tuple[list[list[int]], int]:
        answer = self.group.look_up(length, drop=drop)
        return [[0] * answer], answer

    def cut(self, length: int) -> int:
        return length


def reference_hit(world: tuple[worlds.Group, ...]) -> int:
    coordinator = object.__new__(HybridCoordinator)
    coordinator.alignment = 1
    fakes: Any = [FakeAttention(number, group) for number, group in enumerate(world)]
    coordinator.attention_groups = fakes
    coordinator.groups = tuple(fake.members[0] for fake in fakes)
    request = cast(ReferenceRequest, SimpleNamespace(block_hashes=()))
    hit = coordinator.longest_hit(request, worlds.NUM_TOKENS)
    assert {len(blocks) for blocks in hit.blocks.groups} == {hit.hit_length_tokens}
    return hit.hit_length_tokens


@pytest.mark.rule("KV-COORD-5", "KV-COORD-7", "KV-COORD-8", "KV-COORD-10")
def test_both_implementations_search_alike_in_small_worlds() -> None:
    for number, world in enumerate(worlds.all_worlds()):
        if number % 23 == 0:
            request = cast(FastRequest, None)
            fast = worlds.SmallLookup(world).agreed_hit(request, worlds.NUM_TOKENS)
            assert reference_hit(world) == fast
