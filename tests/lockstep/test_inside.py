"""Hits inside a block: kvfast, both builds, beside kvref, single calls and whole steps."""

from __future__ import annotations

from random import Random

import pytest

import kvref
from kvcheck.mistakes import find
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.request import RequestInput, RequestStatus
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec, MambaSpec
from tests.lockstep.engines import sides
from tests.lockstep.inside import engine, find_difference
from tests.lockstep.test_lockstep import fast
from tests.mistakes import of_kvfast

__all__ = ["fast"]  # the fixture

NUM_DEEP_CALLS = 300_000
FOUND_BY = {
    "EndsOfRunsBeginAtTheNext": 6,
    "ShorterEndsAreCutToBlocks": 6,
    "CopiesAreFullAtOnce": 6,
    "EndsAreNotOwed": 2,
    "CopiesAreKeyedWhole": 9,
    "InnerStatesHaveNoBlock": 11,
    "MovedKeysCoverNothing": 2,
}
"""Of each mistake a seed whose first programs find it."""
MOVED_ALONE = "MovedKeysAnswerAlone"


def broken(mistake: str) -> Implementation:
    """kvfast with this mistake."""
    made: Implementation = find(mistake, of_kvfast()).make()
    return made


def test_every_mistake_is_among_these() -> None:
    about = {each.id for each in of_kvfast() if each.rules[0].startswith("KV-INSIDE")}
    assert about == {*FOUND_BY, MOVED_ALONE}


def test_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert find_difference(fast, 5, 600, 40) >= 600


def test_whole_steps_are_those_of_the_loop(fast: Implementation) -> None:
    engines = [engine(Random(seed), sides(fast)) for seed in range(3)]
    for each in engines:
        each.play(20)
    assert sum(each.drew["copies"] for each in engines) > 0


@pytest.mark.deep
def test_many_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert find_difference(fast, 6, NUM_DEEP_CALLS, 60) >= NUM_DEEP_CALLS


@pytest.mark.parametrize("mistake", FOUND_BY)
def test_random_programs_find_mistakes(mistake: str) -> None:
    with pytest.raises(InvariantViolation):
        find_difference(broken(mistake), FOUND_BY[mistake], 150, 30)


def after_moves(implementation: Implementation) -> Snapshot:
    """Three requests end their first chunk at the same boundary; two of them go on."""
    full = FullAttentionSpec(4, 1, 8, "float16")
    states = MambaSpec(4, ((2,),), ("float32",), mamba_cache_mode="align")
    groups = (KVCacheGroup(("a",), full), KVCacheGroup(("b",), states))
    config = ManagerConfig(
        KVCacheConfig(40, groups),
        max_model_len_tokens=20,
        hash_block_size_tokens=2,
        hash_seed="0",
        policy=Policy(hits_inside_blocks=True),
    )
    manager = implementation.create(config)
    requests = [
        implementation.make_request(manager, RequestInput(name, list(range(1, 8))))
        for name in ("a", "b", "c")
    ]
    for num_computed, names in ((0, "abc"), (6, "ab")):
        manager.new_step_starts()
        for request in requests[: len(names)]:
            request.num_computed_tokens = num_computed
            request.status = RequestStatus.RUNNING
            assert manager.allocate_slots(request, 6 if num_computed == 0 else 1) is not None
    return manager.snapshot()


@pytest.mark.rule("KV-INSIDE-16")
def test_keys_that_move_go_behind_those_of_others(fast: Implementation) -> None:
    found = after_moves(fast)
    assert found == after_moves(kvref.implementation())
    assert [pairs for pairs in found.pending_copies if pairs]
    (orders,) = [o for k, o in found.lookup_order.items() if k[-1] == 1]
    third, *moved = orders
    assert found.requests["c"].block_ids[1][-1] == third
    assert moved == [pair[1] for pair in found.pending_copies[1]]


def test_a_moved_key_that_stands_alone_is_seen() -> None:
    assert after_moves(broken(MOVED_ALONE)) != after_moves(kvref.implementation())
