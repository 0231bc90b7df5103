"""What proofs/code/fixed_point.py says of searches and look-ups is what kvref does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import z3

from kvfast._core.request import FastRequest
from kvref.groups.base import Group, LookUp
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.hybrid import HybridCoordinator
from kvref.request import ReferenceRequest
from proofs._z3 import ask
from proofs.code._fixed_point import worlds
from proofs.code._fixed_point.look_ups import FEW, Cache, chunk_of, kinds, reach


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
    """What kvref's search answers."""
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
    """Of all worlds every 23rd, also where several groups drop."""
    for number, world in enumerate(worlds.all_worlds()):
        if number % 23 == 0:
            request = cast(FastRequest, None)
            fast = worlds.SmallLookup(world).agreed_hit(request, worlds.NUM_TOKENS)
            assert reference_hit(world) == fast


WINDOW, CHUNK = 3, 3
GROUPS: dict[str, type[Group]] = {
    "full": FullAttentionGroup,
    "full with a drop": FullAttentionGroup,
    "window": SlidingWindowGroup,
    "window with a drop": SlidingWindowGroup,
    "chunk": ChunkedLocalGroup,
    "state": MambaGroup,
}


def reference_answer(name: str, cached: Sequence[bool], limit: int, per: int) -> int:
    """What kvref's look-up answers, in blocks of one token of which `per` make an alignment."""
    group: Any = object.__new__(GROUPS[name])
    group.block_size, group.window, group.chunk = 1, WINDOW, CHUNK
    group.context = SimpleNamespace(null_prefix_is_hit=True)
    group.find_in_all = lambda asked, i: [1] if cached[i] else None
    found: list[list[int]] = group.longest_hit(LookUp((), limit, [0], "drop" in name, per))
    return len(found[0])


def known_cache(cached: Sequence[bool], limit: int, per: int) -> Cache:
    """The same as the proof has it."""

    def holds(values: Sequence[bool]) -> Any:
        return lambda i: z3.Or(*(i == n for n, value in enumerate(values) if value))

    def down(n: Any) -> Any:
        return n / per * per

    aligned = [n % per == 0 for n in range(FEW + 3)]
    return Cache(FEW, z3.IntVal(limit), holds(cached), holds(aligned), down)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.name)
@pytest.mark.rule("KV-FULL-2", "KV-SW-2", "KV-SW-4", "KV-SW-5", "KV-CHUNK-2", "KV-MAMBA-3")
def test_a_look_up_answers_what_the_proof_says_and_nothing_else(kind: Any) -> None:
    """Random caches of a few blocks."""
    rng = random.Random(1)
    answer, n = z3.Int("answer"), z3.Int("n")
    chunks = z3.ForAll([n], chunk_of()(n) == n / CHUNK * CHUNK)
    for _ in range(25):
        cached = [rng.random() < 0.7 for _ in range(FEW + 2)]
        limit, per = rng.randrange(FEW + 1), 1 if kind.name == "chunk" else rng.randrange(1, 4)
        observed = reference_answer(kind.name, cached, limit, per)
        said = [kind.known(known_cache(cached, limit, per), answer), reach() == WINDOW - 1, chunks]
        assert ask([*said, answer == observed]) == "sat"
        assert ask([*said, answer != observed]) == "unsat"
