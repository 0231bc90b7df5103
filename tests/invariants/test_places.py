"""Places of blocks and coverage of keys: good states at the bounds, bad ones just beyond them."""

from __future__ import annotations

from typing import Any

import pytest

import kvref
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.invariants import INVARIANTS, check_snapshot
from tests.contract.builders import admit, new_manager, new_request, run_on
from tests.invariants.cases import State, story


def offences(state: State) -> list[str]:
    found = {i.name: i.first_offence(state.config, state.snapshot) for i in INVARIANTS}
    return [name for name, offence in found.items() if offence]


def state_of(num_tokens: int, **config: Any) -> State:
    implementation = kvref.implementation()
    manager = new_manager(implementation, 20, **config)
    admit(manager, new_request(implementation, manager, "a", range(num_tokens)))
    return State(manager.config, manager.snapshot())


@pytest.mark.parametrize(
    ("num_tokens", "config"),
    [
        (5, {"block_size": 1}),
        (33, {"block_size": 4, "dcp_world_size": 2}),
        (33, {"block_size": 4, "pcp_world_size": 2}),
        (33, {"block_size": 2, "dcp_world_size": 2, "pcp_world_size": 3}),
        (30, {"specs": [full(4), sliding(4, 6)]}),
    ],
    ids=["one_token", "dcp", "pcp", "both", "two_groups"],
)
def test_keys_cover_what_their_block_does(num_tokens: int, config: dict[str, Any]) -> None:
    good = state_of(num_tokens, **config)
    check_snapshot(good.config, good.snapshot)
    (first, *_) = good.snapshot.requests["a"].block_ids
    span = good.config.scheduler_block_size_tokens or 1
    for index, block in enumerate(first):
        covered = good.snapshot.covered_tokens[block]
        if covered:
            assert covered == (index + 1) * span
            assert offences(good.covering(block, covered + span)) == ["keys_of_one_place"]


def test_two_keys_of_no_group_are_malformed_and_nothing_else() -> None:
    """Do not look up how many tokens a block of that group would cover."""
    bad = story().with_key(5, bytes(35) + b"\x01", b"\x01" * 32 + bytes(3) + b"\x01")
    assert offences(bad) == ["keys_are_well_formed"]


def test_two_keys_in_a_block_of_one_covered_token_are_one_too_many() -> None:
    implementation = kvref.implementation()
    manager = new_manager(implementation, 20, specs=[full(1), sliding(2, 8)])
    request = new_request(implementation, manager, "a", range(6))
    manager.allocate_slots(request, 1)
    assert manager.cache_partial_block(request, 1, 1)
    good = State(manager.config, manager.snapshot())
    ((block,),) = good.snapshot.requests["a"].block_ids[1:]
    (key,) = good.snapshot.block_keys[block]
    assert offences(good) == []
    assert offences(good.with_key(block, key, bytes(32) + key[-4:])) == ["keys_are_covered"]


def padded(mode: str, block_ids: tuple[int, ...]) -> State:
    spec = mamba(4, mode, speculative=1)
    manager = new_manager(kvref.implementation(), 6, specs=[spec])
    fresh = State(manager.config, manager.snapshot())
    counts = tuple(int(block in block_ids and block > 0) for block in range(6))
    queue = tuple(block for block in range(1, 6) if block not in block_ids)
    given = story().snapshot.requests["a"]
    state = fresh.with_(ref_counts=counts, free_queue=queue, requests={"a": given})
    return state.with_request("a", block_ids=(block_ids,), num_cached_blocks=(0,), mamba=())


@pytest.mark.parametrize(
    ("mode", "block_ids", "found"),
    [
        ("align", (1, 0, 2, 3), []),
        ("align", (0, 0, 2, 3), []),
        ("all", (0, 0, 2, 3), []),
        ("all", (1, 0, 2, 3), ["nulls_come_first"]),
        ("none", (1, 0, 2, 3), ["nulls_come_first"]),
    ],
)
def test_only_mode_align_pads_with_null(
    mode: str, block_ids: tuple[int, ...], found: list[str]
) -> None:
    assert offences(padded(mode, block_ids)) == found


def test_the_reference_pads_so_in_mode_align() -> None:
    """Grow a list [1, 2] of a running and a drafted state to four places."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 9, specs=[mamba(4, "align", speculative=1)])
    request = new_request(implementation, manager, "a", range(13))
    manager.allocate_slots(request, 4)
    request.num_computed_tokens = 4
    run_on(manager, request, 8)
    (blocks,) = manager.get_blocks(request).to_lists()
    assert [block == 0 for block in blocks] == [False, True, False, False]
    check_snapshot(manager.config, manager.snapshot())


def test_a_group_without_null_hides_none_behind_it() -> None:
    good = state_of(8, specs=[full(4), sliding(4, 20)])
    attention, (first, second) = good.snapshot.requests["a"].block_ids
    bad = good.with_request("a", block_ids=(attention, (first, 0)), num_cached_blocks=(2, 1))
    counts = [
        count if block != second else 0 for block, count in enumerate(bad.snapshot.ref_counts)
    ]
    queue = (*bad.snapshot.free_queue, second)
    bad = bad.with_(ref_counts=tuple(counts), free_queue=queue)
    assert offences(bad) == ["nulls_come_first"]
